"""The README's table of request features is the one that decides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trtspec import capabilities
from trtspec.capabilities import Capability, Support, as_markdown
from trtspec.speculative import TYPICAL
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
        ("ngram:typical", "x", Capability("a", Support.NOT_LOSSLESS, "likely")),
    )
    monkeypatch.setattr(capabilities, "_rows", lambda: rows)
    assert as_markdown().splitlines() == [
        "| request features | x | y |",
        "| --- | --- | --- |",
        "| `a` | `none` refused: not here; `ngram` honoured; `ngram:typical` not lossless: likely | honoured |",
        "| `b` | honoured | honoured |",
    ]


def test_another_law_than_the_exact_one_is_labelled_and_the_exact_one_is_not() -> None:
    """Typical acceptance: everything it touches says so, in the table and so in what a server tells of itself."""
    exact = capabilities.capabilities(Method.MEDUSA, "embedded")
    typical = capabilities.capabilities(Method.MEDUSA, "embedded", TYPICAL)
    assert set(exact) <= set(typical)
    changed = {name for name, item in typical.items() if item.support is Support.NOT_LOSSLESS}
    assert changed == {"speculation_on", "seed"}
    assert all("typical acceptance" in typical[name].reason for name in changed)
    assert not any(item.support is Support.NOT_LOSSLESS for item in exact.values())
