"""The table of request features: the documentation shows the one that decides, and it is whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trtspec import capabilities
from trtspec.capabilities import ANY_METHOD, EMBEDDED, ENGINE, PYTORCH, Capability, Support, as_markdown
from trtspec.speculative import TYPICAL
from trtspec.types import Method

SHOWN = Path(__file__).parent.parent / "scripts" / "docs" / "capabilities.md"


def test_the_documentation_shows_the_table() -> None:
    _, _, after = SHOWN.read_text(encoding="utf-8").partition("<!-- capabilities -->\n")
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


@pytest.mark.parametrize("flow", [ENGINE, PYTORCH])
@pytest.mark.parametrize("method", Method)
def test_every_feature_has_a_fate_with_every_method_that_a_flow_has(method: Method, flow: str) -> None:
    if capabilities.refusal(method, flow) is None:
        assert set(capabilities.capabilities(method, flow)) == set(capabilities.capabilities(method, EMBEDDED))


def test_every_row_has_its_evidence_and_every_refusal_its_reason() -> None:
    for method, flow, item in capabilities._rows():
        assert item.evidence, (method, flow, item)
        assert item.reason or item.support is Support.HONOURED, (method, flow, item)
        assert flow in (EMBEDDED, ENGINE, PYTORCH)
        assert method == ANY_METHOD or Method(method.partition(":")[0])


def test_tests_that_are_named_as_evidence_are_there() -> None:
    named = {item.evidence for *_, item in capabilities._rows() if item.evidence.startswith("tests/")}
    assert named and not [name for name in named if not (SHOWN.parents[2] / name).is_file()]


METHODS = {
    EMBEDDED: {"none", "ngram", "draft_model", "medusa", "eagle", "eagle3", "mtp"},
    ENGINE: {"none", "ngram", "draft_model", "medusa", "eagle", "lookahead"},
    PYTORCH: {"none", "ngram", "draft_model", "eagle3", "mtp"},
}


@pytest.mark.parametrize("flow", METHODS)
def test_methods_that_a_flow_lacks_are_refused_with_what_would_work(flow: str) -> None:
    assert {method.value for method in Method if capabilities.refusal(method, flow) is None} == METHODS[flow]
    for method in Method:
        reason = capabilities.refusal(method, flow)
        assert reason is None or any(word in reason for word in ("build with", "use ", "1.3"))
