"""The numbers of a served engine: the same everywhere, and whole after every kind of end.

Cases 37, 39, 40 and 42 of the collected bug reports. The engine is real; its target is a law.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import grpc
import pytest

from tests.fakes import FakeExecutor, Pass, serving
from tests.scripted import chain_law, random_drafter, scripted_engine
from trtspec.client import Client, RequestFailed
from trtspec.decoding.stats import SpeculationStats
from trtspec.executors.in_process import InProcessExecutor
from trtspec.executors.opened import OpenedEngine
from trtspec.service.observing import Arrival, Several, Started, Summary
from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry import windows
from trtspec.service.telemetry.metrics import Metrics
from trtspec.service.telemetry.registry import Registry, Row
from trtspec.service.telemetry.request_log import speculation
from trtspec.types import PassRecord

VOCABULARY = 267
BROKEN = 200
"""A prompt that begins so gets NaN after a while."""


def law(prefix: Sequence[int]) -> Sequence[float]:
    if prefix[0] == BROKEN and len(prefix) > 12:
        return [math.nan] * VOCABULARY
    return chain(prefix)


def following(prefix: Sequence[int]) -> int:
    return (sum(prefix[-3:]) * 7 + len(prefix)) % (VOCABULARY - 2) + 1


chain = chain_law(following, VOCABULARY)


@dataclass
class Watched:
    """What was counted, and how requests ended."""

    registry: Registry
    summaries: list[Summary] = field(default_factory=list)
    before: dict[tuple[str, tuple[str, ...]], Row] = field(default_factory=dict)

    def arrived(self, arrival: Arrival) -> Watched:
        return self

    def started(self, event: Started) -> None:
        self.check_rising()

    def emitted(self, tokens: int, passes: Sequence[PassRecord], at: float) -> None:
        self.check_rising()

    def ended(self, summary: Summary) -> None:
        self.summaries.append(summary)
        self.check_rising()

    def check_rising(self) -> None:
        now = self.registry.snapshot()
        for key, row in self.before.items():
            assert all(old <= new for old, new in zip(row, now[key], strict=True)), key
        self.before = now

    def check_sums(self) -> None:
        total = sum((item.stats for item in self.summaries), SpeculationStats())
        total.check()
        counted = self.registry.snapshot()
        assert windows.amount(counted, names.REQUESTS) == len(self.summaries)
        assert windows.amount(counted, names.DRAFTS) == total.spec_steps > 0
        assert windows.amount(counted, names.DRAFTED) == total.drafted > 0
        assert windows.amount(counted, names.ACCEPTED) == total.accepted > 0
        assert windows.amount(counted, names.GENERATION_TOKENS) == total.completion_tokens
        assert tuple(windows.by_number(counted, names.STEPS, "accepted")) == total.histogram


@contextlib.asynccontextmanager
async def watched(executor: FakeExecutor | None = None) -> AsyncIterator[tuple[Watched, Client]]:
    engine, _ = scripted_engine(law, random_drafter(law, 3, VOCABULARY), vocabulary=VOCABULARY)
    info = FakeExecutor().info()
    metrics = Metrics(Registry())
    seen = Watched(metrics.registry)
    running = executor or InProcessExecutor(OpenedEngine(engine, info))
    observer = Several([metrics, seen])
    async with serving(running, observer=observer) as server, Client(server.address) as client:  # type: ignore[arg-type]
        yield seen, client


async def test_an_answer_the_log_and_the_metrics_have_the_same_numbers() -> None:
    """Cases 37 and 39: drafted [4,4,1], accepted [4,2,1], emitted [5,3,1], the last one cut by the limit."""
    script = [Pass((5,), prefill=True), Pass((6, 7, 8, 9, 10), 4, 4), Pass((11, 12, 13), 4, 2), Pass((14, 15), 1, 1)]
    async with watched(FakeExecutor(script)) as (seen, client):
        answer = await client.complete([1, 2, 3], max_tokens=10)
    counted, stats = seen.registry.snapshot(), answer.finished.stats
    log = speculation(seen.summaries[0].stats)
    assert stats is not None and (stats.drafted, stats.accepted, stats.emitted) == (9, 7, 9)
    rates = (stats.acceptance_rate, log["draft_acceptance_rate"], windows.ratio(counted, names.ACCEPTED, names.DRAFTED))
    assert rates == pytest.approx((7 / 9,) * 3, abs=1e-4)
    lengths = (stats.acceptance_length, log["mean_acceptance_length"], windows.acceptance_length(counted))
    assert lengths == pytest.approx((1 + 7 / 3,) * 3, abs=1e-4)
    passes = (stats.tokens_per_pass, log["tokens_per_pass"], windows.ratio(counted, names.EMITTED, names.PASSES))
    assert passes == pytest.approx((9 / 3,) * 3)


async def test_a_request_without_drafts_has_no_rate_anywhere() -> None:
    async with watched() as (seen, client):
        answer = await client.complete([1, 2, 3], max_tokens=8, speculation="off")
    stats, log = answer.finished.stats, speculation(seen.summaries[0].stats)
    assert stats is not None and stats.acceptance_rate is None and stats.acceptance_length is None
    assert log["draft_acceptance_rate"] is None and log["mean_acceptance_length"] is None
    counted = seen.registry.snapshot()
    assert windows.ratio(counted, names.ACCEPTED, names.DRAFTED) is None and windows.acceptance_length(counted) is None


async def test_what_fails_leaves_is_refused_or_ends_well_adds_up_and_nothing_falls() -> None:
    """Cases 40 and 42: one gets NaN, one is cancelled, one has the id of another; others and later ones are well."""
    async with watched() as (seen, client):

        async def left(prompt: list[int]) -> None:
            events = client.generate(prompt, max_tokens=90, request_id="left")
            async for _ in events:
                with pytest.raises(RequestFailed) as refused:
                    await client.complete([9], request_id="left", max_tokens=2)
                assert refused.value.status is grpc.StatusCode.ALREADY_EXISTS
                break
            await events.aclose()

        async def broken() -> None:
            with pytest.raises(RequestFailed) as failed:
                await client.complete([BROKEN, 1], max_tokens=60)
            assert failed.value.status is grpc.StatusCode.INTERNAL

        well = [
            client.complete([index + 1, 2], max_tokens=20 + index, max_draft_tokens=1 + index % 3) for index in range(2)
        ]
        *answers, _, _ = await asyncio.gather(*well, broken(), left([7, 7]))
        assert [len(answer.token_ids) for answer in answers] == [20, 21]
        later = await client.complete([BROKEN], max_tokens=5)
        assert len(later.token_ids) == 5
        while len(seen.summaries) < 6:
            await asyncio.sleep(0.01)
    seen.check_sums()
    codes = windows.by_label(seen.registry.snapshot(), names.REQUESTS, "code")
    assert codes == {"OK": 3, "INTERNAL": 1, "CANCELLED": 1, "ALREADY_EXISTS": 1}
    broken_ = next(item for item in seen.summaries if item.status is grpc.StatusCode.INTERNAL)
    assert broken_.stats.completion_tokens > 0, "what was verified before the failure counts"
