"""Scheduler, block bookkeeping and verification through random lives: nothing leaks, nobody starves, order holds.

Arrivals, cancels, deadlines, priorities, several outputs, shared beginnings, tenants, block shortage and drafts of
which any part is accepted, all at once. The scripted runner reads every prefix back from its blocks, so a block that
was shared wrongly, written by two or given away too early shows as wrong text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.scripted import Result, drive, greedy, random_drafter, record, scripted_engine
from trtspec.decoding.engine import Engine
from trtspec.decoding.proposers.none import NoProposer
from trtspec.types import FinishReason, Request, SamplingParams, Started

EOS = 14
REQUESTS = 40
CUT_SHORT = (FinishReason.CANCELLED, FinishReason.DEADLINE)


def law(prefix: Sequence[int]) -> list[float]:
    """One token stands out by 9, by the length and by tokens early and late."""
    logits = [0.0] * 16
    logits[(3 * prefix[-1] + prefix[len(prefix) // 2] + 5 * prefix[0] + len(prefix)) % 15] = 9.0
    return logits


@dataclass
class World:
    """Requests with the turns of their arrivals and cancels, and what came of them."""

    requests: dict[str, Request]
    arrivals: dict[str, int]
    cancels: dict[str, int]
    results: dict[str, Result] = field(default_factory=dict)
    first_tokens: dict[str, int] = field(default_factory=dict)
    """The turn in which the last of a request's outputs got its first token."""
    ends: dict[str, int] = field(default_factory=dict)

    def order(self, name: str) -> tuple[int, int]:
        return (-self.requests[name].priority, int(name))

    def work(self, name: str) -> int:
        request = self.requests[name]
        return request.n * (len(request.prompt) + request.max_tokens)


def random_world(values: random.Random) -> World:
    texts = [[values.randrange(15) for _ in range(40)] for _ in range(3)]
    requests, arrivals, cancels, turn = {}, {}, {}, 0
    for number in range(REQUESTS):
        turn += values.choice([0, 0, 1, 2, 6])
        request = random_request(values, str(number), values.choice(texts), turn)
        requests[request.request_id], arrivals[request.request_id] = request, turn
        if values.random() < 0.15:
            cancels[request.request_id] = turn + values.randrange(25)
    return World(requests, arrivals, cancels)


def random_request(values: random.Random, name: str, text: list[int], turn: int) -> Request:
    tail = [values.randrange(15) for _ in range(values.randrange(8))]
    return Request(
        name,
        tuple(text[: values.randint(1, 40)] + tail),
        values.randint(1, 24),
        SamplingParams(temperature=values.choice([0.0] * 9 + [4.0])),
        seed=values.randrange(2**64),
        eos_ids=frozenset({EOS}) if values.random() < 0.5 else frozenset(),
        max_draft_tokens=values.randint(0, 5),
        priority=values.choice([0, 0, 0, 1, -1]),
        deadline=turn + values.randrange(40) if values.random() < 0.15 else None,
        tenant=values.choice("ab"),
        n=values.choice([1, 1, 1, 2, 3]),
        logprobs=values.choice([None, None, None, 1]),
        prompt_logprobs=values.choice([None, None, None, 0]),
    )


def random_engine(values: random.Random) -> Engine:
    block_tokens = values.choice([1, 4, 8])
    engine, _ = scripted_engine(
        law,
        random_drafter(law, 4, seed=values.randrange(1000)),
        batch=values.randint(3, 8),
        pass_tokens=values.randint(8, 64),
        blocks=values.choice([80, 80, 160, 320]) // block_tokens,
        block_tokens=block_tokens,
        context=72,
        prefix_sharing=values.random() < 0.8,
    )
    return engine


def live(engine: Engine, world: World) -> int:
    """Run a world to its end; returns how many passes it took."""
    waiting = dict(world.arrivals)
    turn = 0
    while waiting or not engine.idle:
        for name in [name for name, at in waiting.items() if at <= turn]:
            world.results[name] = Result()
            engine.submit(world.requests[name])
            del waiting[name]
        for name in [name for name, at in world.cancels.items() if at == turn]:
            record(world.results, engine.cancel(name), turn)
        one_pass(engine, world, turn)
        note(world, turn)
        turn += 1
        assert turn < 5000, "the engine makes no progress"
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, stats.total_blocks)
    return stats.passes


def one_pass(engine: Engine, world: World, turn: int) -> None:
    begun = engine.begin(float(turn))
    running = engine._scheduler._roster.running
    for event in begun.events:
        if isinstance(event, Started):
            queued = [name for name, result in world.results.items() if unstarted(result)]
            assert all(world.order(name) >= world.order(event.request_id) for name in queued), "order was not kept"
        record(world.results, [event], turn)
    if begun.plan is not None:
        first = min(running.values(), key=lambda item: item.order)
        assert first.sequence_id in {row.sequence_id for row in begun.plan.rows}, "the first in order was passed over"
        record(world.results, engine.finish(begun.plan), turn)
    engine.check()


def unstarted(result: Result) -> bool:
    return result.started_turn is None and result.error is None and not result.outputs


def note(world: World, turn: int) -> None:
    """When each request got its last first token, and when it ended."""
    for name, result in world.results.items():
        if name not in world.ends:
            outputs = result.outputs.values()
            if sum(bool(output.ids) for output in outputs) == world.requests[name].n:
                world.first_tokens.setdefault(name, turn)
            ended = sum(output.finish is not None for output in outputs)
            if result.error or ended == world.requests[name].n:
                world.ends[name] = turn


def check_waits(world: World) -> None:
    """A request takes no more turns than there are tokens before it: its own, those of requests that come first in
    order, and those of requests that ran before its last output did."""
    for name, end in world.ends.items():
        arrival, last = world.arrivals[name], world.first_tokens.get(name, end)
        beside = [other for other in world.ends if world.arrivals[other] <= end and world.ends[other] >= arrival]
        started = {other: world.results[other].started_turn for other in beside}
        before = [
            other
            for other in beside
            if world.order(other) <= world.order(name) or (started[other] is not None and started[other] <= last)
        ]
        assert end - arrival < sum(world.work(other) for other in before), f"request {name} waited too long"


def check_texts(world: World) -> None:
    for name, request in world.requests.items():
        result = world.results[name]
        assert result.error is None or (request.deadline is not None and result.started_turn is None)
        for output, expected in zip(sorted(result.outputs.items()), texts_of(request), strict=False):
            index, told = output
            assert told.finish is not None
            cut_short = told.finish.reason in CUT_SHORT
            assert told.ids == (expected[: len(told.ids)] if cut_short else expected)
            if request.logprobs is not None:
                assert [item.chosen.token_id for item in told.logprobs] == told.ids
            scored = request.prompt_logprobs is not None and index == 0 and told.ids
            assert [item.chosen.token_id for item in told.prompt_logprobs] == (list(request.prompt) if scored else [])


def texts_of(request: Request) -> list[list[int]]:
    """What each output must be: plain greedy decoding, or plain sampling alone in an engine without sharing."""
    if request.sampling.greedy:
        text = greedy(law, request.prompt, request.max_tokens)
        return [text[: text.index(EOS) + 1] if EOS in text and request.eos_ids else text] * request.n
    engine, _ = scripted_engine(law, NoProposer(), prefix_sharing=False)
    solo = replace(request, max_draft_tokens=0, deadline=None, logprobs=None, prompt_logprobs=None)
    return [output.ids for _, output in sorted(drive(engine, [solo])[request.request_id].outputs.items())]


@pytest.mark.parametrize(
    ("passes", "seed"),
    [(1_000, 0), pytest.param(10_000, 1, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_random_lives(passes: int, seed: int) -> None:
    values = random.Random(seed)
    preemptions = found = done = 0
    while done < passes:
        engine, world = random_engine(values), random_world(values)
        done += live(engine, world)
        check_texts(world)
        check_waits(world)
        preemptions += engine.stats().preemptions
        found += sum(result.cached_tokens or 0 for result in world.results.values())
    assert preemptions > passes // 100 and found > passes // 4, "these lives were too easy"
