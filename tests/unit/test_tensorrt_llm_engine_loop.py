"""Outputs that go on in rounds: what an executor is asked next, when, and with whom."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from queue import Queue, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from trtspec.errors import EngineFault, Overloaded
from trtspec.executors.messages import Cancel, Close, Report, Submit
from trtspec.executors.tensorrt_llm.engine_loop import EngineLoop
from trtspec.executors.tensorrt_llm.limiting import Limiter
from trtspec.executors.tensorrt_llm.outputs import Ask
from trtspec.types import EngineEvent, EngineStats, Failed, Finish, FinishReason, Request, StepOutput


class ByHand:
    """Implements `Engine`: answers what the test says, and tells it what was asked."""

    def __init__(self) -> None:
        self.asked: Queue[list[tuple[str, int]]] = Queue()
        self.most: int = 100
        """So many fit its queue."""
        self._ids = count()
        self._open: set[int] = set()
        self._answers: Queue[tuple[int, ...] | None] = Queue()

    def enqueue(self, asked: Sequence[Mapping[str, Any]]) -> list[int]:
        if len(self._open) + len(asked) > self.most:
            raise RuntimeError("Maximum queue size of 1 has been reached, please try again later")
        self.asked.put([(item["name"], item["round"]) for item in asked])
        ids = [next(self._ids) for _ in asked]
        self._open |= set(ids)
        return ids

    def answer(self, *ids: int) -> None:
        """In one batch."""
        self._open -= set(ids)
        self._answers.put(ids)

    def cancel_request(self, request_id: int) -> None:
        self.answer(request_id)

    def await_responses(self, timeout: timedelta) -> Sequence[Any]:
        if (ids := self._answers.get()) is None:
            raise RuntimeError("Shutdown called")
        result = SimpleNamespace(is_final=True, request_perf_metrics=None)
        return [SimpleNamespace(request_id=id_, has_error=lambda: False, result=result) for id_ in ids]

    def get_latest_iteration_stats(self) -> Sequence[Any]:
        return ()

    def shutdown(self) -> None:
        self._answers.put(None)


@dataclass
class Counting:
    """Implements `Output`: one token a round, so many rounds; asking fails for the round that is `broken`."""

    request: Request
    index: int = 0
    broken: int | None = None
    ended: bool = False
    rounds: int = 0
    closed: int = 0
    is_late: bool = False
    fault: EngineFault = field(default_factory=lambda: EngineFault("no more"))

    def ask(self, now: float) -> Ask:
        if self.rounds == self.broken:
            raise self.fault
        return Ask("target", {"name": self.request.request_id, "round": self.rounds})

    def take(self, result: Any, pass_index: int) -> StepOutput:
        self.rounds += 1
        self.ended = self.rounds == self.request.max_tokens
        finish = Finish(FinishReason.LENGTH) if self.ended else None
        return StepOutput(self.request.request_id, self.index, (self.rounds,), (), finish)

    def late(self, now: float) -> StepOutput | None:
        finish = Finish(FinishReason.DEADLINE)
        return StepOutput(self.request.request_id, self.index, (), (), finish) if self.is_late else None

    def disagreement(self, result: Any) -> str | None:
        return None

    def close(self) -> None:
        self.closed += 1


class Driven:
    """A loop in a thread of its own, over one engine."""

    def __init__(self, engine: ByHand, **broken: int) -> None:
        self.outputs: dict[str, list[Counting]] = {}
        self.events: Queue[EngineEvent] = Queue()
        self._broken = broken
        """The round for which the first output of a request cannot be asked."""
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._loop = EngineLoop(
            {"target": engine}, self._make, EngineStats(), Limiter(), tokens_per_block=32, stall_seconds=60
        )
        self._thread = threading.Thread(target=self._loop.run, args=(self._inbox, self._publish))
        self._thread.start()

    def put(self, *messages: object) -> None:
        for message in messages:
            self._inbox.put(message)

    def close(self) -> None:
        self.put(Close())
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._loop.check()
        assert all(output.closed == 1 for outputs in self.outputs.values() for output in outputs)

    def failure(self) -> Failed:
        """The next one; whatever comes before it is left out."""
        while not isinstance(event := self.events.get(timeout=5), Failed):
            pass
        return event

    def _publish(self, report: Report) -> None:
        for event in report.events:
            self.events.put(event)

    def _make(self, request: Request) -> Sequence[Counting]:
        name = request.request_id
        first = Counting(request, 0, self._broken.get(name))
        self.outputs[name] = [first, *(Counting(request, index) for index in range(1, request.n))]
        return self.outputs[name]


def submit(name: str, rounds: int = 3, n: int = 1) -> Submit:
    return Submit(Request(name, (5,), rounds, n=n))


def test_what_goes_on_at_once_is_asked_at_once() -> None:
    """So that an executor batches it from its next step on."""
    engine = ByHand()
    driven = Driven(engine)
    driven.put(submit("a"), submit("b"))
    assert [engine.asked.get(timeout=5) for _ in range(2)] == [[("a", 0)], [("b", 0)]]
    engine.answer(0, 1)
    assert engine.asked.get(timeout=5) == [("a", 1), ("b", 1)]
    engine.answer(2)
    assert engine.asked.get(timeout=5) == [("a", 2)]
    driven.close()


def test_one_that_cannot_go_on_ends_alone() -> None:
    engine = ByHand()
    driven = Driven(engine, a=1)
    driven.put(submit("a"), submit("b", rounds=2))
    assert [engine.asked.get(timeout=5) for _ in range(2)] == [[("a", 0)], [("b", 0)]]
    engine.answer(0, 1)
    assert engine.asked.get(timeout=5) == [("b", 1)]
    engine.answer(2)
    found = [driven.events.get(timeout=5) for _ in range(6)]
    assert [event for event in found if isinstance(event, Failed)] == [Failed("a", driven.outputs["a"][0].fault)]
    assert [event.request_id for event in found if isinstance(event, StepOutput)] == ["a", "b", "b"]
    driven.close()


def test_one_output_that_cannot_go_on_ends_its_request() -> None:
    """Whatever its place among those that are asked: nothing is asked for the others."""
    engine = ByHand()
    driven = Driven(engine, a=1)
    driven.put(submit("a", n=3))
    assert engine.asked.get(timeout=5) == [("a", 0)] * 3
    engine.answer(1, 0, 2)
    assert driven.failure() == Failed("a", driven.outputs["a"][0].fault)
    driven.close()
    assert engine.asked.empty()


def waiting(engine: ByHand, **broken: int) -> Driven:
    """Two requests, of which the second found no place for its next round."""
    driven = Driven(engine, **broken)
    driven.put(submit("a", rounds=2), submit("b", rounds=2))
    assert [engine.asked.get(timeout=5) for _ in range(2)] == [[("a", 0)], [("b", 0)]]
    engine.most = 1
    engine.answer(0, 1)
    assert engine.asked.get(timeout=5) == [("a", 1)]
    return driven


def test_rounds_wait_where_the_queue_is_full() -> None:
    """As many go on as find a place, and nobody new is let in before the others."""
    engine = ByHand()
    driven = waiting(engine)
    driven.put(submit("c"))
    assert driven.failure().request_id == "c" and "c" not in driven.outputs
    engine.answer(2)
    assert engine.asked.get(timeout=5) == [("b", 1)]
    driven.close()


def test_one_that_finds_no_place_is_refused() -> None:
    engine = ByHand()
    engine.most = 0
    driven = Driven(engine)
    driven.put(submit("a"))
    assert isinstance(driven.failure().error, Overloaded)
    driven.close()


@pytest.mark.parametrize("cancelled", [True, False])
def test_one_that_ends_while_its_round_waits_is_not_asked_for(cancelled: bool) -> None:
    engine = ByHand()
    driven = waiting(engine)
    driven.put(*([Cancel("b")] if cancelled else []))
    driven.close()
    assert engine.asked.empty()


def test_one_that_is_late_while_its_round_waits_ends_there() -> None:
    engine = ByHand()
    driven = waiting(engine)
    driven.outputs["b"][0].is_late = True
    while not isinstance(event := driven.events.get(timeout=5), StepOutput) or event.finish is None:
        pass
    assert (event.request_id, event.finish.reason) == ("b", FinishReason.DEADLINE)
    driven.close()
    assert engine.asked.empty()


def test_one_that_is_cancelled_during_a_round_asks_no_more() -> None:
    engine = ByHand()
    driven = Driven(engine)
    driven.put(submit("a"))
    engine.asked.get(timeout=5)
    driven.put(Cancel("a"))  # whose last answer is the one to its first round
    driven.close()
    assert engine.asked.empty()
