"""What the server says of its requests, and what the clients saw of them. The two must agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from trtspec.service.observing import Arrival, Started, Summary
from trtspec.types import PassRecord


@dataclass(slots=True)
class Seen:
    """What a client saw of one request."""

    kind: str
    tokens: int = 0
    """That arrived."""
    finished: int | None = None
    """What the last message says was generated; None where there was none."""
    accepted: bool = False


@dataclass(slots=True)
class Told:
    """What the server told of one request."""

    emitted: int = 0
    summary: Summary | None = None


@dataclass(slots=True)
class Counting:
    """Implements `Observer`. Requests that were refused before their id was known are only counted."""

    arrived_calls: int = 0
    ended_calls: int = 0
    statuses: Counter[grpc.StatusCode] = field(default_factory=Counter)
    requests: dict[str, Told] = field(default_factory=dict)

    def arrived(self, arrival: Arrival) -> _One:
        self.arrived_calls += 1
        return _One(self)


class _One:
    def __init__(self, counting: Counting) -> None:
        self._counting = counting
        self._told = Told()

    def started(self, event: Started) -> None: ...

    def emitted(self, tokens: int, passes: Sequence[PassRecord], at: float) -> None:
        self._told.emitted += tokens

    def ended(self, summary: Summary) -> None:
        assert self._told.summary is None, "a request ended twice"
        self._told.summary = summary
        self._counting.ended_calls += 1
        self._counting.statuses[summary.status] += 1
        if summary.request:
            name = summary.request.request_id
            assert name not in self._counting.requests, f"{name} was run twice"
            self._counting.requests[name] = self._told


def disagreements(seen: dict[str, Seen], counting: Counting) -> list[str]:
    """Where clients and server tell different stories."""
    found = []
    if counting.arrived_calls != counting.ended_calls:
        found.append(f"{counting.arrived_calls} requests arrived and {counting.ended_calls} ended")
    for name, one in seen.items():
        told = counting.requests.get(name)
        if told is None or told.summary is None:
            if one.accepted:
                found.append(f"{name} ({one.kind}) was accepted, but is in no count")
            continue
        generated = sum(output.tokens for output in told.summary.outputs)
        if not one.tokens <= generated <= told.emitted:
            found.append(f"{name} ({one.kind}): {one.tokens} tokens seen, {generated} counted, {told.emitted} emitted")
        if one.finished is not None and not one.tokens == one.finished == generated == told.emitted:
            counts = f"{one.tokens} tokens seen, {one.finished} told, {generated} counted, {told.emitted} emitted"
            found.append(f"{name} ({one.kind}) finished: {counts}")
    unknown = len(counting.requests.keys() - seen.keys())
    if unknown:
        found.append(f"{unknown} requests were counted that nobody sent")
    return found
