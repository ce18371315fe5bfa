"""Guides on plain compiled engines over the double: the text is that of the embedded backend under the same guide."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builders.build import main
from tests.engines import collect
from tests.equality.test_guided import GUIDES, TAG, Trusting
from tests.fakes.installed import need_plugins, tensorrt_llm_double
from tests.models import tiny_llama
from trtspec.config import EngineOptions
from trtspec.errors import InvalidField, Unsupported
from trtspec.executors import open_executor
from trtspec.guides import Guide, GuideKind
from trtspec.types import FinishReason, Request, SamplingParams

pytestmark = pytest.mark.slow

CHOICE = Guide(GuideKind.CHOICE, 'root ::= "the in" | "on"')
PROMPT = (10, 11, 12, 13)


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


@pytest.fixture(autouse=True)
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.executors.guides.opening.Rehearsal", Trusting)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("guided") / "model", seed=4, layers=3, max_positions=512)


def build(model: Path, backend: str, method: str = "none", dtype: str = "float32", *flags: str) -> Path:
    output = model.parent / f"{backend}-{method}"
    argv = ["--backend", backend, "--method", method, "--target", str(model), "--dtype", dtype, *flags]
    assert main([*argv, "--output", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def compiled(model: Path) -> Path:
    return build(model, "tensorrt_llm")


@pytest.fixture(scope="module")
def embedded(model: Path) -> Path:
    return build(model, "embedded", "none", "float32", "--runner", "eager")


def asked(name: str, guide: Guide | None, **changes: object) -> Request:
    return replace(Request(name, PROMPT, 40, eos_ids=frozenset({0}), guide=guide), **changes)  # type: ignore[arg-type]


async def texts(folder: Path) -> list[tuple[list[int], FinishReason | None]]:
    guides = [GUIDES[0], GUIDES[1], GUIDES[3], CHOICE, None]
    executor = await open_executor(folder, EngineOptions(), in_process=True)
    try:
        requests = [asked(str(i), guide) for i, guide in enumerate(guides)]
        found = await asyncio.gather(*(collect(executor, request) for request in requests))
    finally:
        await executor.aclose()
    return [(item.ids, item.finish and item.finish.reason) for item in found]


async def test_the_text_is_that_of_the_embedded_backend(compiled: Path, embedded: Path) -> None:
    found = await texts(compiled)
    assert found == await texts(embedded)
    assert found[3][1] is FinishReason.EOS and len({tuple(ids) for ids, _ in found}) == 5


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (asked("tag", Guide(GuideKind.STRUCTURAL_TAG, str(TAG).replace("'", '"'))), "structural tags"),
        (asked("on", CHOICE, eos_ids=frozenset()), "ignore_eos"),
        (asked("long", CHOICE, sampling=SamplingParams(min_tokens=3)), "min_tokens is 3"),
    ],
)
async def test_what_the_runtime_would_ignore_or_break_at_is_refused(
    compiled: Path, request_: Request, word: str
) -> None:
    executor = await open_executor(compiled, EngineOptions(), in_process=True)
    try:
        with pytest.raises(Unsupported, match=word):
            await collect(executor, request_)
        assert (await collect(executor, asked("good", CHOICE))).ids
    finally:
        await executor.aclose()


async def test_a_guide_that_makes_no_sense_never_reaches_the_runtime(
    compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it would end all requests."""

    def check(self: Trusting, guide: Guide) -> None:
        raise InvalidField(guide.field, "not understood", "a text of that kind")

    monkeypatch.setattr(Trusting, "check", check)
    executor = await open_executor(compiled, EngineOptions(), in_process=True)
    try:
        free = asyncio.create_task(collect(executor, asked("free", None)))
        with pytest.raises(InvalidField, match=r"guided_decoding\.regex"):
            await collect(executor, asked("bad", Guide(GuideKind.REGEX, "([")))
        assert len((await free).ids) == 40
    finally:
        await executor.aclose()


async def test_an_engine_for_drafts_refuses_guides_with_and_without_its_method(model: Path) -> None:
    need_plugins()
    folder = await asyncio.to_thread(build, model, "tensorrt_llm", "ngram", "bfloat16")
    for speculative in (None, {"method": "none"}):
        executor = await open_executor(folder, EngineOptions(speculative=speculative), in_process=True)
        try:
            if speculative:
                ((feature, reason),) = executor.info().lacks
                assert feature == "guided_decoding" and "rounds" in reason
            with pytest.raises(Unsupported):
                await collect(executor, asked("a", CHOICE))
        finally:
            await executor.aclose()
