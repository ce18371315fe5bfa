"""Who decides what stays of a round's draft, and what the target is asked for it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trtspec.errors import EngineFault, RequestError
from trtspec.types import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a round."""

    emitted: Sequence[int]
    """Tokens of the draft that stay, and behind them the target's own."""
    accepted: int
    """How many of them were drafted."""
    decided: bool = True
    """False where the position behind the accepted tokens was left open, and what comes is the next round's."""
    told: Sequence[TokenLogprobs] = ()
    """Of each emitted token, where the request asks for it."""
    fault: RequestError | None = None
    """What the output cannot go on for, behind what was emitted."""
    doubt: str | None = None
    """What the runtime counted itself, where it says otherwise."""


class Verifier(Protocol):
    """Of the rounds of one output."""

    def arguments(self, tokens: Sequence[int], draft: Sequence[int], now: float) -> dict[str, Any]:
        """Of the request for one round: what stays of `draft` behind `tokens`, the prompt and what was generated."""
        ...

    def read(self, tokens: Sequence[int], draft: Sequence[int], result: Any) -> Verdict:
        """The round's result, which was neither cancelled nor out of time."""
        ...

    def close(self) -> None:
        """The output ended."""
        ...


def round_seed(seed: int, output_index: int, position: int) -> int:
    """Of one round: an engine begins each request with the same noise for the same seed."""
    words = f"{seed} {output_index} {position}".encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")


def engine_fault(tokens: Sequence[int], vocabulary: int) -> EngineFault | None:
    """What is wrong with what an engine drew: one of the ids that fill up the rows of its output head is no token."""
    beyond = [token for token in tokens if token >= vocabulary]
    if not beyond:
        return None
    return EngineFault(f"the engine drew the token {beyond[0]}, and the vocabulary has {vocabulary}")
