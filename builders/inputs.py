"""What a build read: names, sizes, times and hashes, to tell whether a rerun has anything to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtspec.manifest import hash_file

_PATTERNS = ("*.json", "*.jinja", "*.safetensors", "*.model", "*.txt", "additional_chat_templates/*.jinja")
"""All that config, weights, tokenizer and template of a Hugging Face folder can come from."""


@dataclass(frozen=True, slots=True)
class Input:
    """One file of a checkpoint as it was when its build began."""

    name: str
    bytes: int
    mtime_ns: int
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def input_files(target: Path) -> dict[str, Path]:
    """The files a build of this target reads, by name."""
    if target.is_file():
        return {target.name: target}
    found = sorted(path for pattern in _PATTERNS for path in target.glob(pattern) if path.is_file())
    return {str(path.relative_to(target)): path for path in found}


def fingerprint(name: str, path: Path) -> Input:
    mtime_ns = path.stat().st_mtime_ns
    content = hash_file(path)
    return Input(name, content.bytes, mtime_ns, content.sha256)


def unchanged(recorded: Sequence[Mapping[str, Any]], files: Mapping[str, Path]) -> bool:
    """Whether the files are the recorded ones: by size and time, and by hash where the time differs."""
    return {item["name"] for item in recorded} == set(files) and all(
        _same(item, files[item["name"]]) for item in recorded
    )


def _same(item: Mapping[str, Any], path: Path) -> bool:
    stat = path.stat()
    if stat.st_size != item["bytes"]:
        return False
    if stat.st_mtime_ns == item["mtime_ns"]:
        return True
    return hash_file(path).sha256 == str(item["sha256"])
