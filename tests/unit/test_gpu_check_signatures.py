"""`scripts/gpu-check --tensorrt-llm`: the comparison of signatures finds what is missing, moved or changed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from scripts.gpu_check.tensorrt_llm import signatures
from scripts.gpu_check.tensorrt_llm.signatures import compare, names
from tests.fakes.installed import tensorrt_llm_double

REQUEST = "tensorrt_llm.bindings.executor.Request"


def test_names_are_read_from_the_text_of_bound_functions() -> None:
    text = "def __init__(self, a: dict[str, int] = {}, *, b: Callable[[int], tuple[int, str]] | None = None) -> None"
    assert names(text) == ["self", "a", "b"]
    assert names("a module") == []


@pytest.fixture
def installed() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


def of(symbol: str) -> tuple[str, ...]:
    return next(item.differences for item in compare() if item.symbol == symbol)


@pytest.mark.usefixtures("installed")
def test_the_double_differs_nowhere() -> None:
    found = compare()
    assert {item.symbol: item.differences for item in found if item.differences} == {}
    assert len(found) > 100


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("signature", "told"),
    [
        ("def __init__(self, input_token_ids: list, max_tokens: int)", "it lacks ["),
        ("def __init__(self, max_tokens: int, input_token_ids: list)", "it lacks ["),
    ],
)
def test_a_parameter_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch, signature: str, told: str) -> None:
    monkeypatch.setattr(f"{REQUEST}.__nb_signature__", ((signature, None),))
    (difference,) = of(REQUEST)
    assert told in difference and "'streaming'" in difference and "'max_tokens'" in difference


@pytest.mark.usefixtures("installed")
def test_places_that_changed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    known = names(signatures.signatures(signatures.resolve(REQUEST))[0])
    required = [known[0], known[1]]
    moved = ", ".join([*reversed(required), *known[2:]])
    monkeypatch.setattr(f"{REQUEST}.__nb_signature__", ((f"def __init__({moved})", None),))
    assert "in their order" in of(REQUEST)[0]


@pytest.mark.usefixtures("installed")
def test_what_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(REQUEST)
    assert of(REQUEST) == ("it is not there",)


@pytest.mark.usefixtures("installed")
def test_members_that_changed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    symbol = "tensorrt_llm.models.modeling_utils.SpeculativeDecodingMode"
    monkeypatch.setattr(symbol, SimpleNamespace(NONE=1, MEDUSA=5))
    told = of(symbol)
    assert "member MEDUSA is 5 and not 4" in told and "member EAGLE is not there" in told
    assert not any("NONE" in text for text in told)


@pytest.mark.usefixtures("installed")
def test_attributes_that_are_gone_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    symbol = "tensorrt_llm.bindings.executor.Result"
    kept = {"is_final": "bool"}
    monkeypatch.setattr(symbol, type("Result", (), {"__annotations__": kept, "__nb_signature__": ()}))
    told = of(symbol)
    assert "attribute output_token_ids is not there" in told and "attribute is_final is not there" not in told
