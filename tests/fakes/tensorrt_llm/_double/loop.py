"""The executor's thread (executorImpl.cpp): fetches requests between passes, turns the engine, tells what happened.

It knows requests as groups of sequences; what is told, and to whom, is the listener's.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

from tensorrt_llm._double.errors import FETCH, FORWARD, assertion, thrown
from tensorrt_llm._double.faults import Faults, ForwardFailure
from tensorrt_llm._double.machine import Machine
from tensorrt_llm._double.passes import Listener, Pass, decoded, rows_of
from tensorrt_llm._double.sampling import Fatal, Refused
from tensorrt_llm._double.sequence import CANCELLED, TIMED_OUT, Admit, Group, Sequence

from trtspec.types import Failed, StepOutput


class Loop:
    """Owns the thread. `put`, `cancel` and `close` may be called from any other."""

    def __init__(self, machine: Machine, faults: Faults, admit: Admit, listener: Listener, capacity: int) -> None:
        self._machine, self._faults, self._admit, self._listener = machine, faults, admit, listener
        self._capacity = capacity
        self._changed = threading.Condition()
        self._waiting: deque[Group | None] = deque()
        """None is the marker behind which nothing is fetched."""
        self._active: dict[int, Group] = {}
        self._cancelled: set[int] = set()
        self._live: dict[str, Sequence] = {}
        self._passes = 0
        self._joined: list[Group] = []
        self._thread = threading.Thread(target=self._run, name="trtllm-double", daemon=True)
        self._thread.start()

    def put(self, groups: list[Group], most: int | None) -> None:
        """Queue requests, all or none; more than `most` outputs do not fit."""
        with self._changed:
            queued = sum(group.count for group in self._waiting if group is not None)
            if most and queued + sum(group.count for group in groups) > most:
                raise RuntimeError(thrown(f"Maximum queue size of {most} has been reached, please try again later"))
            self._waiting += groups
            self._changed.notify_all()

    def cancel(self, group_id: int) -> None:
        """End a request with the next pass; one that waits is ended once it runs."""
        with self._changed:
            self._cancelled.add(group_id)
            self._changed.notify_all()

    def close(self) -> None:
        """Run what was queued before, and end."""
        with self._changed:
            self._waiting.append(None)
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while self._active or not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._active or self._waiting)
                fetched, met_marker = ([], False) if closing else self._fetch()
                cancelled = self._cancelled - {group.id for group in self._waiting if group is not None}
                self._cancelled -= cancelled
            closing = closing or met_marker
            for group in [] if met_marker else fetched:  # what came together with the marker is dropped
                self._start(group)
            if self._active:
                self._end_early(cancelled)
            if self._active:
                self._pass()

    def _fetch(self) -> tuple[list[Group], bool]:
        """What there is room for, and whether the marker was met. One that is too large for any room runs alone."""
        room, fetched = self._capacity - len(self._live), list[Group]()
        while self._waiting:
            group = self._waiting[0]
            if group is not None and group.count > room and (fetched or self._active):
                break
            self._waiting.popleft()
            if group is None:
                return fetched, True
            fetched.append(group)
            room -= group.count
        return fetched, False

    def _start(self, group: Group) -> None:
        """Admit a request, or tell why not."""
        group.scheduled = time.monotonic()
        if (allotted := getattr(group.request, "allotted_time_ms", None)) is not None:
            group.deadline = group.scheduled + allotted.total_seconds()
        try:
            group.sequences = self._admit(group)
            for sequence in group.sequences if group.fatal is None else ():
                self._machine.engine.submit(sequence.asked)
        except Fatal as error:
            group.fatal = str(error)
        except Exception as error:
            for sequence in group.sequences:
                self._machine.engine.cancel(sequence.key)
            text = str(error) if isinstance(error, Refused) else assertion(str(error))
            self._listener.failed(group, FETCH + text)
            return
        self._active[group.id] = group
        self._joined.append(group)
        group.first_iteration = self._passes + 1
        self._live |= {sequence.key: sequence for sequence in group.sequences}

    def _end_early(self, cancelled: set[int]) -> None:
        """End what was cancelled and what is overdue: with an empty answer for each output."""
        now = time.monotonic()
        for group in list(self._active.values()):
            overdue = group.deadline is not None and now >= group.deadline
            if group.id not in cancelled and not overdue:
                continue
            for sequence in [each for each in group.sequences if not each.finished]:
                sequence.reason = CANCELLED if group.id in cancelled else TIMED_OUT
                self._machine.engine.cancel(sequence.key)
                self._listener.stepped(sequence, [], self._passes)
            self._remove(group)

    def _pass(self) -> None:
        """Turn the engine once; whatever goes wrong ends all that are active."""
        began, number = time.monotonic(), self._passes + 1
        self._passes = number
        try:
            if fatal := next((group.fatal for group in self._active.values() if group.fatal), None):
                raise ForwardFailure(fatal)
            self._faults.strike(number)
            if self._machine.throttle is not None:
                self._machine.throttle.begin(len(self._active))
            begun = self._machine.engine.begin(began)
            events = begun.events + (self._machine.engine.finish(begun.plan) if begun.plan else ())
        except Exception as error:
            self._fail_all(str(error) if isinstance(error, ForwardFailure) else assertion(repr(error)))
            return
        self._faults.delay(began)
        facts, before = self._facts(begun.plan, events, began), len(self._active)
        for event in events:
            if isinstance(event, StepOutput):
                self._step(self._live[event.request_id], event)
            elif isinstance(event, Failed):
                self._fail(self._live[event.request_id].group, FORWARD + assertion(str(event.error)))
        self._listener.passed(replace(facts, completed=before - len(self._active)))

    def _step(self, sequence: Sequence, event: StepOutput) -> None:
        group = sequence.group
        new = sequence.take(event)
        if sequence.again is not None:
            self._draw_again(sequence)
            return
        group.last_token, group.last_iteration = time.monotonic(), self._passes
        group.first_token = group.first_token or group.last_token
        if sequence.finished:
            self._machine.engine.cancel(sequence.key)  # where a stop word ended it; else it is unknown there
            self._live.pop(sequence.key)
        self._listener.stepped(sequence, new, self._passes)
        if group.finished:
            self._remove(group)

    def _draw_again(self, sequence: Sequence) -> None:
        self._machine.engine.cancel(sequence.key)
        self._live.pop(sequence.key)
        assert sequence.again is not None
        sequence.asked, sequence.again = sequence.again, None
        self._live[sequence.key] = sequence
        self._machine.engine.submit(sequence.asked)

    def _fail_all(self, text: str) -> None:
        for group in list(self._active.values()):
            self._fail(group, FORWARD + text)
        self._joined.clear()

    def _fail(self, group: Group, text: str) -> None:
        for sequence in group.sequences:
            self._machine.engine.cancel(sequence.key)
        self._remove(group)
        self._listener.failed(group, text)

    def _remove(self, group: Group) -> None:
        self._active.pop(group.id)
        for sequence in group.sequences:
            self._live.pop(sequence.key, None)

    def _facts(self, plan: Any, events: Items[Any], began: float) -> Pass:
        joined, self._joined = self._joined, []
        with self._changed:
            queued = len(self._waiting)
        context_rows, context_tokens = rows_of(plan)
        return Pass(
            number=self._passes,
            latency=time.monotonic() - began,
            queue_latency=sum(group.scheduled - group.arrival for group in joined),
            joined=len(joined),
            active=len(self._active),
            queued=queued,
            completed=0,
            context_rows=context_rows,
            context_tokens=context_tokens,
            decoded=decoded(events),
        )
