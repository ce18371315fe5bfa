"""What a client gets: events, a whole answer, and the one error.

Unknown is None. A method or finish reason that this version does not know is told as a text, such as `unknown(42)`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import grpc

from trtspec.decoding.stats import SpeculationStats
from trtspec.errors import TrtspecError
from trtspec.types import FinishReason, Method, OutputLaw, TokenLogprobs


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
    unverified_target: bool
    """The engine's drafter was loaded although nothing shows that it was made for this target."""
    output_law: OutputLaw | str
    """What is known of the law of the tokens, compared with the target's own."""
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
    """New ids and text of one output."""

    token_ids: tuple[int, ...]
    text: str
    passes: tuple[Pass, ...]
    output_index: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each id, where asked for."""


@dataclass(frozen=True, slots=True)
class Output:
    """How one output ended."""

    index: int
    reason: FinishReason | str
    stop_string: str | None
    stop_token_id: int | None
    completion_tokens: int
    text: str | None
    """In `Finished` with `full_output` or granularity "final" only, as ids and log-probabilities."""
    token_ids: tuple[int, ...] | None
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request, with its totals over all outputs."""

    outputs: tuple[Output, ...]
    """By index; at least one."""
    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int | None
    """Of the prompt, from the prefix cache."""
    time_to_first_token: float | None
    decode_seconds: float | None
    total_seconds: float | None
    stats: SpeculationStats | None
    """None where it was not asked for, or where the engine does not count."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token of the prompt, where asked for; the first has no number."""

    @property
    def reason(self) -> FinishReason | str:
        """Why the first output ended."""
        return self.outputs[0].reason

    @property
    def stop_string(self) -> str | None:
        """The text that ended the first output."""
        return self.outputs[0].stop_string

    @property
    def stop_token_id(self) -> int | None:
        """The token that ended the first output."""
        return self.outputs[0].stop_token_id


Event = Accepted | Chunk | Finished


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    outputs: tuple[Output, ...]
    """With text and ids, by index."""
    accepted: Accepted
    finished: Finished

    @property
    def text(self) -> str:
        """Text of the first output."""
        return self.outputs[0].text or ""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the first output."""
        return self.outputs[0].token_ids or ()


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
