"""The command `python -m plugins.aot`: compile kernels, print what came out, and write the PTX where asked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from plugins.aot import ARCHITECTURES, KERNELS_PACKAGE, CompiledKernel, compile_kernel
from plugins.contract import LOGITS_TYPES, KernelSpec
from plugins.specs import KERNELS
from trtspec.errors import WRONG_INPUT, TrtspecError

_HEADINGS = ("kernel", "entry", "target", "threads", "shared", "sha256", "parameters")
_EPILOG = """\
PTX runs on the chips it is for and on all later ones, unless its target ends in a letter. The default runs on every
chip from Ampere on. No GPU is needed; results are kept in $TRTSPEC_CACHE (default ~/.cache/trtspec).

examples:
  python -m plugins.aot
  python -m plugins.aot --arch 90 --logits bfloat16 --output ptx
"""


def main(
    argv: Sequence[str] | None = None,
    kernels: Mapping[str, KernelSpec] = KERNELS,
    package: str = KERNELS_PACKAGE,
) -> int:
    """Compile what is asked for, and return the exit code."""
    options = _parser(kernels).parse_args(argv)
    names = options.kernel or list(kernels)
    try:
        compiled = {
            name: compile_kernel(kernels[name], options.logits, options.arch, package=package) for name in names
        }
        written = [_write(options.output, name, options.logits, item) for name, item in compiled.items()]
    except (TrtspecError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, WRONG_INPUT) else 1
    print(table([_row(kernels[name], options.logits, item) for name, item in compiled.items()]))
    for path in filter(None, written):
        print(path)
    return 0


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows under their headings, in columns."""
    lines = [_HEADINGS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _row(spec: KernelSpec, logits: str, item: CompiledKernel) -> tuple[str, ...]:
    parameters = ", ".join(f"{name} {kind}" for name, kind in spec.signature(logits).items())
    shared = f"{item.shared_bytes} B"
    return (spec.name, item.entry, item.target, str(item.block_x), shared, item.key[:12], parameters)


def _write(folder: Path | None, name: str, logits: str, item: CompiledKernel) -> Path | None:
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{logits}.{item.target}.ptx"
    path.write_text(item.ptx, encoding="utf-8")
    return path


def _parser(kernels: Mapping[str, KernelSpec]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m plugins.aot",
        description="Compile the verification kernels to PTX, as TensorRT engines hold them, and print a table.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--arch",
        type=int,
        choices=ARCHITECTURES,
        default=ARCHITECTURES[0],
        help="the oldest chips that it has to run on, by compute capability: 90 is Hopper (default: %(default)s)",
    )
    parser.add_argument(
        "--logits",
        choices=LOGITS_TYPES,
        default="float32",
        help="type of the logits that the kernels read (default: %(default)s)",
    )
    parser.add_argument(
        "--kernel",
        action="append",
        choices=tuple(kernels),
        metavar="NAME",
        help=f"compile only this one; may be repeated; known: {', '.join(kernels)}",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="write each kernel's PTX into this folder")
    return parser
