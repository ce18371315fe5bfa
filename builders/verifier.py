"""`python -m builders.verifier`: small engines that verify drafts, built apart from any model.

Owns the flags and what is printed; the work is in `builders.verification`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from builders.packages import require_packages
from builders.progress import working_on
from builders.verification.building import Request, build
from builders.verification.kinds import COMPILERS, KINDS
from builders.verification.limits import Limits, parse_range
from plugins.contract import LOGITS_TYPES
from plugins.verification_specs import MOST_NODES
from plugins.verifier_folder import NAME, VerifierRecord
from trtspec.errors import WRONG_INPUT, TrtspecError

_EPILOG = f"""\
kinds:
{chr(10).join(f"  {kind.name:<13} {kind.summary}" for kind in KINDS.values())}

compilers:
{chr(10).join(f"  {item.name:<13} {item.summary}" for item in COMPILERS.values())}

Sizes are LEAST:USUAL:MOST, or one number that never changes. An engine runs with any size in between and is tuned for
the usual one; rows of logits whose width never changes are read 16 bytes at a time where it is a multiple of 16.

The folder gets an engine for each network, and {NAME}, which says what they take and give. `plugins.runtime` opens it.

examples:
  python -m builders.verifier --kind native --compiler tensorrt_rtx --vocabulary 49152 --output verifier
  python -m builders.verifier --kind plugins --architecture 90 --vocabulary 128000 --width 128256 --logits bfloat16 \\
      --rows 1:16:64 --nodes 1:8:60 --output verifier
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Build, and return the exit code: 2 for wrong input, 1 for a failed build."""
    options = _parser().parse_args(argv)
    try:
        require_packages(("torch",))
        request = _request(options)
        print(_plan(request), flush=True)
        with working_on("reading what is needed") as status:
            record = build(request, lambda what: _tell(status, what))
    except (TrtspecError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, WRONG_INPUT) else 1
    except KeyboardInterrupt:
        print("interrupted; nothing was left behind", file=sys.stderr)
        return 130
    print(_built(record, request.output))
    return 0


def _request(options: argparse.Namespace) -> Request:
    kind = KINDS[options.kind]
    route = kind.route(options.compiler)
    width = str(options.vocabulary) if options.width is None else options.width
    limits = Limits(
        rows=parse_range(options.rows, "--rows"),
        nodes=parse_range(options.nodes, "--nodes"),
        width=parse_range(width, "--width"),
        vocabulary=options.vocabulary,
        logits=options.logits,
    )
    return Request(kind, route, limits, route.resolve(options.architecture), options.output)


def _plan(request: Request) -> str:
    limits, route = request.limits, request.route
    rows = {
        "kind": f"{request.kind.name}: {request.kind.summary}",
        "compiler": f"{route.compiler.name}: {route.compiler.summary}",
        "for": ", ".join(f"sm_{item}" for item in request.architectures) or "what the compiler takes",
        "rows": str(limits.rows),
        "nodes": f"{limits.nodes} a row",
        "logits": f"{limits.logits}, {limits.width} wide, {limits.vocabulary} tokens",
        "output": str(request.output),
    }
    return "\n".join(f"{key:<10} {value}" for key, value in rows.items())


def _built(record: VerifierRecord, output: Path) -> str:
    lines = [f"\n{record.compiler} {record.compiler_version} built"]
    for item in record.engines.values():
        lines.append(f"  {output / item.file}  {item.bytes / 1e6:.2f} MB  {len(item.inputs)} inputs")
    return "\n".join([*lines, f"  {output / NAME}"])


def _tell(status: object, what: str) -> None:
    status.update(what)  # type: ignore[attr-defined]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m builders.verifier",
        description="Build engines that verify drafts: from the target's logits and the drafted trees to what is "
        "accepted. They know no model, and serve any with that vocabulary.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kind", choices=tuple(KINDS), required=True, help="what the engines are made of, see below")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the folder to make")
    parser.add_argument(
        "--compiler", choices=tuple(COMPILERS), help="what compiles them, see below (default: tensorrt)"
    )
    parser.add_argument(
        "--architecture",
        type=int,
        action="append",
        default=[],
        metavar="SM",
        help="chips to build for, by compute capability, such as 90. Plugins: the oldest one (default: 80); "
        "tensorrt_rtx: may be repeated (default: 80, 86, 89 and 120)",
    )
    parser.add_argument("--vocabulary", type=int, required=True, metavar="V", help="how many tokens there are")
    parser.add_argument(
        "--width", metavar="SIZES", help="columns of logits, where they are padded (default: the vocabulary)"
    )
    parser.add_argument(
        "--logits", choices=LOGITS_TYPES, default="float32", help="type of the logits (default: %(default)s)"
    )
    parser.add_argument("--rows", default="1:8:64", metavar="SIZES", help="sequences of a batch (default: %(default)s)")
    parser.add_argument(
        "--nodes",
        default=f"1:8:{MOST_NODES}",
        metavar="SIZES",
        help=f"drafted nodes of a row, at most {MOST_NODES} (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
