"""`python -m scripts.gpu_check`: the command line. What a mode needs is imported when it is chosen."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


def _embedded(options: argparse.Namespace) -> int:
    from scripts.gpu_check import embedded

    return embedded.run(options)


def _tensorrt_llm(options: argparse.Namespace) -> int:
    from scripts.gpu_check.tensorrt_llm import checking

    return checking.run(options)


def _kernels(options: argparse.Namespace) -> int:
    # Triton reads it when it is imported. On a CPU kernels run in its interpreter.
    os.environ["TRITON_INTERPRET"] = "1" if options.device == "cpu" else "0"
    from scripts.gpu_check.kernels import checking

    return checking.run(options)


@dataclass(frozen=True, slots=True)
class Mode:
    """One thing to check."""

    run: Callable[[argparse.Namespace], int]
    takes: frozenset[str]
    """Options that mean something to it, of those that not all modes take."""
    help: str


MODES = {
    "embedded": Mode(_embedded, frozenset({"device"}), "the embedded engine, eager runner"),
    "tensorrt_llm": Mode(
        _tensorrt_llm,
        frozenset({"dtype"}),
        "the installed TensorRT-LLM: its signatures beside ours, and engines of every method; --output also keeps the "
        "signatures",
    ),
    "kernels": Mode(
        _kernels,
        frozenset({"device", "seed", "tune"}),
        "the kernels of plugins/ against their twins, their PTX as TensorRT launches it, and how fast they read; needs "
        "PyTorch and Triton only",
    ),
}
DEFAULTS = {"dtype": "bfloat16", "device": "cuda", "seed": None, "tune": False}
"""Of the options that not all modes take."""


def main(argv: Sequence[str]) -> int:
    started = time.monotonic()
    parser = _parser()
    options = parser.parse_args(argv, argparse.Namespace(started=started))
    mode = MODES[options.mode]
    for name, value in DEFAULTS.items():
        if not hasattr(options, name):
            setattr(options, name, value)
        elif name not in mode.takes:
            parser.error(f"{_flag(name)} means nothing to {_flag(options.mode)}; {_modes_that_take(name)} takes it")
    return mode.run(options)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _modes_that_take(option: str) -> str:
    return " or ".join(_flag(name) for name, mode in MODES.items() if option in mode.takes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-check",
        description="Check on a GPU that engines say what they must, and measure them. Makes its own models.",
        epilog="exit codes: 0 all holds, 1 something differs, 2 wrong command line or engine, 3 no GPU or no "
        "TensorRT-LLM",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    for name, mode in MODES.items():
        what.add_argument(_flag(name), dest="mode", action="store_const", const=name, help=mode.help)
    _add_particular(parser)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few prompts and tokens, tiny models or shapes: whether it runs at all",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report there too, as Markdown")
    return parser


def _add_particular(parser: argparse.ArgumentParser) -> None:
    """What not all modes take; absent unless given, so that what a mode would ignore is refused."""

    def add(name: str, help: str, **about: object) -> None:
        text = f"{help}, with {_modes_that_take(name)}"
        parser.add_argument(f"--{name}", default=argparse.SUPPRESS, help=text, **about)  # type: ignore[arg-type]

    dtypes = ("bfloat16", "float16", "float32")
    add("dtype", f"of engines (default: {DEFAULTS['dtype']})", choices=dtypes)
    add("device", f"default: {DEFAULTS['device']}", choices=("cuda", "cpu"))
    add("seed", "of the random inputs (default: another each time; the report tells it)", type=int)
    add("tune", "measure other block sizes of the kernels, too", action="store_true")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
