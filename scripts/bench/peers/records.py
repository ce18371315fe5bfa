"""The lines of `results.jsonl`: the run, its measurements, and what failed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trtspec.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Run:
    """What all measurements of a file share."""

    kind: ClassVar[str] = "run"
    command: str
    started: str
    """UTC."""
    threads: int
    commit: str | None
    machine: dict[str, Any]
    """`machine.Machine`."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One reading of one engine."""

    kind: ClassVar[str] = "measurement"
    engine: str
    mode: str
    concurrency: int
    round: int
    prompt_tokens: int
    tokens: int
    seconds: float
    load_seconds: float
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def __str__(self) -> str:
        return (
            f"{self.engine} {self.mode} concurrency {self.concurrency} round {self.round}: {self.tokens} tokens in "
            f"{self.seconds:.2f} s, {self.tokens_per_second:.1f} tokens/s (prompt {self.prompt_tokens}, "
            f"loaded in {self.load_seconds:.1f} s)"
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be measured and why; without a mode, the engine as a whole."""

    kind: ClassVar[str] = "failure"
    engine: str
    reason: str
    mode: str | None = None
    concurrency: int | None = None
    round: int | None = None

    def __str__(self) -> str:
        where = "" if self.mode is None else f" {self.mode} concurrency {self.concurrency} round {self.round}"
        return f"{self.engine}{where} FAILED: {self.reason}"


Record = Run | Measurement | Failure
_KINDS: dict[str, type[Run] | type[Measurement] | type[Failure]] = {
    kind.kind: kind for kind in (Run, Measurement, Failure)
}


@dataclass(frozen=True, slots=True)
class Results:
    """The records of one file."""

    run: Run
    measurements: tuple[Measurement, ...]
    failures: tuple[Failure, ...]


def parse(lines: Iterable[str]) -> Results:
    """The records of a file; raises `ConfigError` for one that does not begin with its run."""
    records = [_record(json.loads(line)) for line in lines]
    if not records or not isinstance(records[0], Run):
        raise ConfigError("the results do not begin with a run; measure again")
    return Results(
        records[0],
        tuple(record for record in records if isinstance(record, Measurement)),
        tuple(record for record in records if isinstance(record, Failure)),
    )


def _record(values: dict[str, Any]) -> Record:
    return _KINDS[values.pop("kind")](**values)
