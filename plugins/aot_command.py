"""The command `python -m plugins.aot`: compile kernels, print what came out, and write the PTX where asked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from plugins.aot import ARCHITECTURES, KERNELS_PACKAGE, CompiledKernel, compile_kernel
from plugins.contract import LOGITS_TYPES, KernelSpec
from plugins.known import known_sizes
from plugins.specs import KERNELS
from plugins.symbolic import multiples_of_16
from trtspec.errors import WRONG_INPUT, ConfigError, TrtspecError

_HEADINGS = ("kernel", "entry", "target", "threads", "shared", "sha256", "parameters")
_EPILOG = """\
PTX runs on the chips it is for and on all later ones, unless its target ends in a letter. The default runs on every
chip from Ampere on. No GPU is needed; results are kept in $TRTSPEC_CACHE (default ~/.cache/trtspec).

examples:
  python -m plugins.aot
  python -m plugins.aot --arch 90 --logits bfloat16 --output ptx
  python -m plugins.aot --known width=128256 --known vocabulary=128256   # as plugins hold them in such a network
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
        multiples = _multiples([kernels[name] for name in names], kernels.values(), dict(options.known))
        compiled = {
            name: compile_kernel(
                kernels[name], options.logits, options.arch, multiples=multiples[name], package=package
            )
            for name in names
        }
        written = [_write(options.output, name, options.logits, item) for name, item in compiled.items()]
    except (TrtspecError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, WRONG_INPUT) else 1
    print(table([_row(kernels[name], options.logits, multiples[name], item) for name, item in compiled.items()]))
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


def _multiples(
    specs: Sequence[KernelSpec], kernels: Collection[KernelSpec], known: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """By kernel; refused is a size that none of them has."""
    found = {spec.name: known_sizes(spec, kernels, known) for spec in specs}
    sizes = sorted({name for spec in specs for name in set(found[spec.name]) - {*spec.constants, *spec.derived}})
    for name in known:
        if name not in sizes:
            raise ConfigError(f"--known: {name} is no size of {', '.join(found)}; sizes are {', '.join(sizes)}")
    return {spec.name: multiples_of_16(spec, found[spec.name]) for spec in specs}


def _row(spec: KernelSpec, logits: str, multiples: Sequence[str], item: CompiledKernel) -> tuple[str, ...]:
    signature = spec.signature(logits)
    parameters = ", ".join(f"{name} {kind}{' x16' * (name in multiples)}" for name, kind in signature.items())
    shared = f"{item.shared_bytes} B"
    return (spec.name, item.entry, item.target, str(item.block_x), shared, item.key[:12], parameters)


def _write(folder: Path | None, name: str, logits: str, item: CompiledKernel) -> Path | None:
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{logits}.{item.target}.ptx"
    path.write_text(item.ptx, encoding="utf-8")
    return path


def _known(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if not name or not size.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SIZE, such as width=128256")
    return name, int(size)


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
    parser.add_argument(
        "--known",
        action="append",
        type=_known,
        default=[],
        metavar="NAME=SIZE",
        help="a size or number that every run has, such as width=128256; may be repeated. Of multiples of 16 the "
        "kernels make use, and of aligned rows; the table marks them x16",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="write each kernel's PTX into this folder")
    return parser
