"""What a client gets: events, a whole answer, and the one error."""

from __future__ import annotations

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
    method: Method
    max_draft_tokens: int
    reason: str
    """Why speculation differs from what was asked for."""
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Pass:
    """What one target pass did."""

    index: int
    drafted: int
    accepted: int
    verified_nodes: int
    emitted: int
    cut: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """New ids and text."""

    token_ids: tuple[int, ...]
    text: str
    passes: tuple[Pass, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request, with its totals. Unknown is None."""

    reason: FinishReason
    stop_string: str | None
    stop_token_id: int | None
    prompt_tokens: int
    completion_tokens: int
    text: str
    """With `full_output` only."""
    time_to_first_token: float | None
    decode_seconds: float | None
    total_seconds: float | None
    stats: SpeculationStats | None


Event = Accepted | Chunk | Finished


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    accepted: Accepted
    finished: Finished


class RequestFailed(TrtspecError):
    """A call that ended with a status other than OK."""

    def __init__(
        self, status: grpc.StatusCode, message: str, reason: str = "", field: str = "", partial: Finished | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.field = field
        self.partial = partial
        """Totals of a request that failed after it was accepted."""
