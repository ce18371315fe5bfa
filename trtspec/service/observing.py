"""What a server lets others see of its requests: metrics, logs and traces are observers.

Observers are told on the event loop, in the order in which things happen, and must neither block nor raise. They learn
sizes, times and numbers; texts only of a request that ended, by way of its `ParsedRequest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from trtspec.decoding.stats import SpeculationStats
from trtspec.service.callers import Caller
from trtspec.service.requests import ParsedRequest
from trtspec.types import FinishReason, PassRecord


@dataclass(slots=True)
class Clock:
    """Instants of one request, on `time.monotonic()`; None is what did not happen."""

    arrival: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A call, before anything of it was looked at."""

    at: float
    message_bytes: int
    peer: str
    metadata: Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Started:
    """The request left the queue: `accepted` is being sent."""

    request: ParsedRequest
    prompt_tokens: int
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Ending:
    """How one output ended."""

    reason: FinishReason
    tokens: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What there is to say of a request at its end, however it ended."""

    clock: Clock
    ended: float
    status: grpc.StatusCode
    """CANCELLED also where the client was gone."""
    reason: str
    """Stable and machine readable, of the error that ended it; empty without one."""
    caller: Caller | None = None
    request: ParsedRequest | None = None
    """None where it was refused before its fields were known to be good."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    outputs: tuple[Ending, ...] = ()
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    derived: bool = False
    """The numbers of its passes were worked out, and not counted."""


class RequestObserver(Protocol):
    """Follows one request."""

    def started(self, event: Started) -> None:
        """It left the queue."""
        ...

    def emitted(self, tokens: int, passes: Sequence[PassRecord], at: float) -> None:
        """Tokens of an output arrived from the engine; passes that waited for a slow reader come together."""
        ...

    def ended(self, summary: Summary) -> None:
        """It ended; called exactly once."""
        ...


class Observer(Protocol):
    """Follows all requests."""

    def arrived(self, arrival: Arrival) -> RequestObserver:
        """A call came in."""
        ...


class _Deaf:
    def started(self, event: Started) -> None: ...

    def emitted(self, tokens: int, passes: Sequence[PassRecord], at: float) -> None: ...

    def ended(self, summary: Summary) -> None: ...


class Nobody:
    """Implements `Observer` where nobody looks."""

    def arrived(self, arrival: Arrival) -> RequestObserver:
        return _Deaf()


NOBODY = Nobody()


class Several:
    """Implements `Observer` for several."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def arrived(self, arrival: Arrival) -> RequestObserver:
        return _All([observer.arrived(arrival) for observer in self._observers])


class _All:
    def __init__(self, observers: Sequence[RequestObserver]) -> None:
        self._observers = observers

    def started(self, event: Started) -> None:
        for observer in self._observers:
            observer.started(event)

    def emitted(self, tokens: int, passes: Sequence[PassRecord], at: float) -> None:
        for observer in self._observers:
            observer.emitted(tokens, passes, at)

    def ended(self, summary: Summary) -> None:
        for observer in self._observers:
            observer.ended(summary)
