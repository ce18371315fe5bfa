"""What crosses between the benchmark and its workers, as JSON: jobs go out, readings come back.

Standard library only: workers load it in the peers' environments.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

CONTEXT_TOKENS = 2048
"""What every engine is opened for where it must be told: prompt and text of one request."""


class Mode(str, enum.Enum):
    """What is measured; values are the words of flags and of the report."""

    PLAIN = "plain"
    SPECULATION = "speculation"
    PREFILL = "prefill"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement of one engine, which a process of its own carries out."""

    adapter: str
    """Module of `adapters`."""
    model: str
    """Folder or file of the weights, in the form the engine reads."""
    options: dict[str, Any]
    """What else opens this variant of the engine."""
    mode: Mode
    concurrency: int
    """Requests in flight."""
    threads: int
    prompts: list[list[int]]
    """Token ids, the same for all engines; no two begin alike, so that no prefix cache helps."""
    warm_up: list[list[int]]
    max_new_tokens: int
    eos_ids: list[int]

    @property
    def speculates(self) -> bool:
        return self.mode is Mode.SPECULATION

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        values = json.loads(text)
        return cls(**{**values, "mode": Mode(values["mode"])})


@dataclass(frozen=True, slots=True)
class Reading:
    """One figure of a job: so many tokens in so much time."""

    prompt_tokens: int
    """Mean length of the prompts."""
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker found out."""

    readings: list[Reading]
    load_seconds: float
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Answer:
        values = json.loads(text)
        readings = [Reading(**reading) for reading in values.pop("readings")]
        return cls(readings=readings, **values)


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts to be continued, `Job.concurrency` of them at a time, greedily."""

    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    ignore_eos: bool = False
    """Generate exactly `max_new_tokens` for each."""


Generate = Callable[[Work], int]
"""An opened engine: does the work and returns how many tokens it generated."""
Adapter = Callable[[Job], AbstractContextManager[Generate]]
"""`opened` of each module in `adapters`."""
