"""`tokenizer.json` before a library reads it: libraries set memory aside for every id up to the largest one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtspec.json_file import read_object

NAME = "tokenizer.json"
_MOST_BYTES = 512 << 20
_MOST_IDS = 1 << 22
"""Sixteen times as many as the largest vocabularies have."""


def check_ids(path: Path) -> None:
    """Refuse ids that no tokenizer has. Raises one of `json_file.UNREADABLE`."""
    document = read_object(path, _MOST_BYTES)
    for id_ in _ids(document):
        if type(id_) is not int or not 0 <= id_ < _MOST_IDS:
            raise ValueError(f"it has token id {id_!r:.40}; ids are 0 to {_MOST_IDS - 1}")


def _ids(document: Mapping[str, Any]) -> Iterator[Any]:
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, Mapping):  # else a list, whose ids are its places
        yield from vocabulary.values()
    for token in document.get("added_tokens") or ():
        yield token["id"]
