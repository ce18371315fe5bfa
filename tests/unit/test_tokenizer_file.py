"""Ids in a tokenizer's file: refused before a library sets memory aside for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import engine_folder
from trtspec.errors import EngineFolderError
from trtspec.generation import TOKENIZER
from trtspec.service.text import Tokenizer
from trtspec.service.tokenizer_file import NAME, check_ids

MOST = (1 << 22) - 1


def write(path: Path, vocabulary: object, *added: object) -> Path:
    path.write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": [{"id": id_} for id_ in added]}))
    return path


@pytest.mark.parametrize(
    ("vocabulary", "added"), [({"a": 0, "b": MOST}, ()), ({}, (0, MOST)), ([["a", -1.0], ["b", -2.5]], ())]
)
def test_ids_of_any_real_tokenizer_are_taken(vocabulary: object, added: tuple[int, ...], tmp_path: Path) -> None:
    check_ids(write(tmp_path / NAME, vocabulary, *added))


@pytest.mark.parametrize("id_", [MOST + 1, 2**31, 2**70, -1, 1.5, True, "1", None])
def test_others_are_not(id_: object, tmp_path: Path) -> None:
    for path in (write(tmp_path / "a", {"a": id_}), write(tmp_path / "b", {}, id_)):
        with pytest.raises(ValueError, match="token id"):
            check_ids(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["model"]["vocab"].update(a=2**31),
        lambda document: document["added_tokens"][0].update(id=2**31),
        lambda document: document.pop("model"),
    ],
)
def test_an_engine_with_such_a_file_is_refused(change: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    path = engine_folder(tmp_path) / TOKENIZER / NAME
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(EngineFolderError, match="cannot be read"):
        Tokenizer.load(tmp_path)
