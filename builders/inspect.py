"""`python -m builders.inspect`: what an engine folder holds, from its manifest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trtspec import manifest
from trtspec.errors import TrtspecError
from trtspec.manifest import Manifest
from trtspec.types import OutputLaw


def main(argv: Sequence[str] | None = None) -> int:
    """Print a manifest, and return the exit code."""
    options = _parser().parse_args(argv)
    try:
        found = manifest.read(options.directory, verify=options.verify)
    except (TrtspecError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(describe(found))
    if options.verify:
        print(f"\nverified: the hashes of all {len(found.artifacts)} artifacts are right")
    return 0


def describe(found: Manifest) -> str:
    """Facts, artifacts and smoke result for people."""
    facts = {
        "engine_id": found.engine_id,
        "model": found.model,
        "backend": found.backend,
        "runner": found.runner,
        "architecture": found.architecture,
        "dtype": found.dtype,
        "quantization": found.quantization,
        "context": f"{found.max_context_tokens} tokens",
        "vocabulary": f"{found.vocabulary_size} ids",
        "speculative": manifest.canonical_json(found.speculative.facts()),
        "output law": _law(found.output_law),
        "drafter": _drafter(found),
        "target": found.target_sha256,
        "tokenizer": found.tokenizer_sha256,
        "smoke": manifest.canonical_json(dict(found.smoke)),
        "versions": ", ".join(f"{name} {version}" for name, version in found.versions.items()),
        "built": f"{found.build.get('created')} in {found.build.get('seconds')} s",
        "argv": " ".join(found.build.get("argv", ())),
    }
    lines = [f"{key:<13} {value}" for key, value in facts.items()]
    lines += ["", "artifacts"]
    lines += [f"  {item.bytes:>12}  {item.sha256[:12]}  {name}" for name, item in sorted(found.artifacts.items())]
    return "\n".join(lines)


def _law(law: OutputLaw) -> str:
    if law is OutputLaw.EXACT:
        return f"{law.value}: that of the target alone"
    return f"{law.value}: NOT LOSSLESS, sampled text is not that of the target alone"


def _drafter(found: Manifest) -> str:
    if found.drafter is None:
        return "none"
    made_for = found.drafter.target_sha256 or "a target that it does not name"
    shown = "NOT VERIFIED, allowed by flag" if found.drafter.unverified else f"shown by {found.drafter.matched_by}"
    return f"{found.drafter.format}, made for {made_for}; that it is this one is {shown}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m builders.inspect", description="Print what an engine folder holds, and check its files' sizes."
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="an engine folder")
    parser.add_argument("--verify", action="store_true", help="hash every artifact, not only compare sizes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
