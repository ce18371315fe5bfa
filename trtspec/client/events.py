"""What a client gets: events, a whole answer, and the one error.

Unknown is None. A method or finish reason that this version does not know is told as a text, such as `unknown(42)`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import grpc

from trtspec.decoding.stats import SpeculationStats
from trtspec.errors import TrtspecError
from trtspec.types import FinishReason, Method


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request left the queue."""

    request_id: str
    seed: int
    model: str
    engine_id: str
    method: Method | str
    max_draft_tokens: int
    reason: str
    """Why speculation differs from what was asked for."""
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Pass:
    """What one target pass did."""

    index: int
    drafted: int | None
    accepted: int | None
    verified_nodes: int | None
    emitted: int
    cut: bool
    prefill: bool = False
    """The pass ended the prompt: it is in no statistic of speculation."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """New ids and text."""

    token_ids: tuple[int, ...]
    text: str
    passes: tuple[Pass, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request, with its totals."""

    reason: FinishReason | str
    stop_string: str | None
    stop_token_id: int | None
    prompt_tokens: int
    completion_tokens: int
    text: str | None
    """With `full_output` or granularity "final" only, as the ids."""
    token_ids: tuple[int, ...] | None
    time_to_first_token: float | None
    decode_seconds: float | None
    total_seconds: float | None
    stats: SpeculationStats | None
    """None where it was not asked for, or where the engine does not count."""


Event = Accepted | Chunk | Finished


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    accepted: Accepted
    finished: Finished


class RequestFailed(TrtspecError):
    """A call that ended with a status other than OK, or that could not be made of the values given."""

    def __init__(
        self,
        status: grpc.StatusCode,
        message: str,
        reason: str = "",
        field: str = "",
        partial: Finished | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.field = field
        self.partial = partial
        """Totals of a request that failed after it was accepted."""
        self.retry_after = retry_after
        """Seconds that the server advises to wait before the next try."""


def word(value: enum.Enum | str) -> str:
    """A method or finish reason as a word, known or not."""
    return str(value.value) if isinstance(value, enum.Enum) else value
