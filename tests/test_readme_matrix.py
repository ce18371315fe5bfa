"""The README's table of request features is the one that decides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trtspec import capabilities
from trtspec.capabilities import Capability, Support, as_markdown
from trtspec.types import Method

README = Path(__file__).parent.parent / "README.md"


def test_the_readme_shows_the_table() -> None:
    _, _, after = README.read_text(encoding="utf-8").partition("<!-- capabilities -->\n")
    shown, end, _ = after.partition("<!-- /capabilities -->")
    assert end and shown == as_markdown() + "\n", "put the output of `python -m trtspec.capabilities` there"


def test_the_module_prints_it() -> None:
    command = [sys.executable, "-m", "trtspec.capabilities"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == as_markdown() + "\n"


def test_every_feature_is_shown_once_with_its_fate() -> None:
    table = as_markdown()
    for feature, capability in capabilities.capabilities(Method.NGRAM, "embedded").items():
        [line] = [line for line in table.splitlines() if f"`{feature}`" in line.split("|")[1]]
        assert capability.support.value in line and capability.reason in line


def test_methods_are_named_where_they_differ_and_flows_have_a_column_each(monkeypatch: pytest.MonkeyPatch) -> None:
    honoured, refused = Capability("a", Support.HONOURED), Capability("a", Support.REFUSED, "not here")
    other = Capability("b", Support.HONOURED)
    rows = (
        ("none", "x", refused),
        ("ngram", "x", honoured),
        ("*", "y", honoured),
        ("*", "x", other),
        ("*", "y", other),
    )
    monkeypatch.setattr(capabilities, "_rows", lambda: rows)
    assert as_markdown().splitlines() == [
        "| request features | x | y |",
        "| --- | --- | --- |",
        "| `a` | `none` refused: not here; `ngram` honoured | honoured |",
        "| `b` | honoured | honoured |",
    ]
