"""What crosses the channel between a front-end's process and the one that holds the executor.

A request has two names there: its own id, which is unique over all front-ends, and the key of its front-end's mailbox,
under which its events come back, so that late ones of a cancelled request never reach a new one that reuses its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import EngineEvent, EngineInfo, EngineStats, Health, Request


@dataclass(frozen=True, slots=True)
class Joined:
    """From a front-end: it listens, and waits for the engine."""


@dataclass(frozen=True, slots=True)
class Answering:
    """From a front-end: it answers requests."""


@dataclass(frozen=True, slots=True)
class Counted:
    """From a front-end: its totals since it began, as series of numbers."""

    totals: Mapping[tuple[str, tuple[str, ...]], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Run:
    """From a front-end: run a request; `messages.Cancel` with the key ends it."""

    key: str
    request: Request


@dataclass(frozen=True, slots=True)
class AskStats:
    """From a front-end: answered by one `Reading`."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """To a front-end, first: the executor is open."""

    info: EngineInfo
    health: Health
    limit: SpeculationLimit


@dataclass(frozen=True, slots=True)
class Turned:
    """To a front-end: the executor's health changed."""

    health: Health


@dataclass(frozen=True, slots=True)
class Limited:
    """To a front-end: drafts are bounded by another limit from now on."""

    limit: SpeculationLimit


@dataclass(frozen=True, slots=True)
class Events:
    """To a front-end: all that became known of its requests since the last one, under their keys."""

    events: tuple[EngineEvent, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """To a front-end: the executor's state; nothing older follows."""

    stats: EngineStats
