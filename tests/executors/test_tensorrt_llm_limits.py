"""Limits of drafting in the PyTorch flow, from builder to executor over the double."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from builders.build import main
from tests.draft_files import write_eagle3
from tests.engines import collect
from tests.fakes.installed import tensorrt_llm_double
from tests.models import tiny_llama
from trtspec import manifest
from trtspec.config import EngineOptions
from trtspec.errors import ConfigError
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.types import Request

PROMPT = tuple([10, 11, 12] * 4)
CHAIN = {"method": "draft_model", "num_speculative_tokens": 3}
SCHEDULE = {"1": 3, "2": 0}
GATE = {"acceptance_window": 2, "acceptance_length_threshold": 3}
"""A draft model that is the target again accepts everything, and the prompt's own pass still makes it less than 3."""


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("limits") / "model", seed=4, layers=7, max_positions=512)


@pytest.fixture(scope="module")
def built(model: Path) -> Path:
    """Limited by a schedule."""
    return build(model, model, "schedule", {**CHAIN, "draft_len_schedule": SCHEDULE})


@pytest.fixture(scope="module")
def drafted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Engines whose EAGLE-3 drafter is inside of the target's passes, and beside them to be limited."""
    write_eagle3(drafter := tmp_path_factory.mktemp("eagle3"))
    limits: dict[str, dict[str, int]] = {"inside": {}, "beside": {"max_concurrency": 2}}
    return {name: build(model, drafter, name, {"method": "eagle3", **more}) for name, more in limits.items()}


@pytest.fixture(scope="module")
def embedded(model: Path) -> Path:
    output = model.parent / "embedded"
    argv = ["--backend", "embedded", "--runner", "eager", "--method", "ngram", "--target", str(model)]
    assert main([*argv, "--output", str(output)]) == 0
    return output


def build(model: Path, draft: Path, name: str, config: Mapping[str, Any]) -> Path:
    argv = ["--backend", "tensorrt_llm", "--flow", "pytorch", "--method", config["method"], "--target", str(model)]
    argv += ["--draft", str(draft), "--allow-unverified-target", "--output", str(output := model.parent / name)]
    assert main([*argv, "--speculative-config", json.dumps(config)]) == 0
    return output


@asynccontextmanager
async def opened(folder: Path, **asked: Any) -> AsyncIterator[Executor]:
    executor = await open_executor(folder, EngineOptions(speculative=asked or None), in_process=True)
    try:
        yield executor
    finally:
        await executor.aclose()


def ask(name: str, max_tokens: int = 40, depth: int = 3) -> Request:
    return Request(name, PROMPT, max_tokens, max_draft_tokens=depth)


async def test_a_schedule_is_served_as_it_was_built(built: Path) -> None:
    """Its JSON has texts for keys, which TensorRT-LLM does not take."""
    assert manifest.read(built).speculative.draft_len_schedule == ((1, 3), (2, 0))
    async with opened(built) as executor:
        assert (await collect(executor, ask("a"))).stats.accepted == 29


async def test_limits_change_when_it_is_served(built: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A gate that closes is told at the start and when it has closed, and texts stay what they were."""
    closed = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "off for good" in record.getMessage():
                closed.set()

    logger, listener = logging.getLogger("trtspec.executors.tensorrt_llm.acceptance_watch"), Listener()
    logger.addHandler(listener)
    try:
        async with opened(built, **CHAIN, draft_len_schedule={}, **GATE) as executor:
            assert "a gate that never opens again" in caplog.messages[0]
            results = [await collect(executor, ask(str(index))) for index in range(4)]
            assert [result.stats.accepted for result in results] == [29, 29, 0, 0]
            assert len({tuple(result.ids) for result in results}) == 1
            while not closed.is_set():
                await collect(executor, ask("again"))
    finally:
        logger.removeHandler(listener)
    assert len([message for message in caplog.messages if "off for good" in message]) == 1


async def test_the_watch_is_told_how_many_run_when_one_ends(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trtspec.executors.tensorrt_llm.acceptance_watch import AcceptanceWatch

    told: list[tuple[bool, int]] = []
    monkeypatch.setattr(AcceptanceWatch, "ended", lambda self, length, count: told.append((length >= 1, count)))
    async with opened(built) as executor:
        await asyncio.gather(*(collect(executor, ask(str(most), most)) for most in (12, 60)))
    assert told == [(True, 2), (True, 1)]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"num_speculative_tokens": 2}, "drafts as it was built, or has method none; what may change are max_concurr"),
        ({"min_confidence": 0.5}, "min_confidence is 0.5, which the pytorch flow of TensorRT-LLM does not follow"),
        ({"draft_len_schedule": {"1": 2}}, "has 2 tokens for 1 request and num_speculative_tokens is 3"),
    ],
)
async def test_nothing_else_changes(asked: dict[str, Any], message: str, built: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        async with opened(built, method="draft_model", **asked):
            pass


@pytest.mark.slow
async def test_a_drafter_inside_the_target_cannot_be_limited_later(drafted: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="max_concurrency is asked for, and this engine was built to draft inside"):
        async with opened(drafted["inside"], method="eagle3", max_concurrency=2):
            pass
    async with opened(drafted["beside"], method="eagle3", max_concurrency=1) as executor:
        assert len((await collect(executor, ask("a", 12, 5))).ids) == 12


async def test_other_engines_refuse_limits_when_they_are_served(embedded: Path) -> None:
    with pytest.raises(ConfigError, match="max_concurrency is 2, which the embedded backend does not follow"):
        async with opened(embedded, method="ngram", max_concurrency=2):
            pass
