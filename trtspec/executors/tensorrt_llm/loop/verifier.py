"""Who decides what stays of a round's draft, and what the target is asked for it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trtspec.decoding.sampling import NO_TOKEN
from trtspec.types import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a round."""

    emitted: Sequence[int]
    """Tokens of the draft that stay, and behind them the target's own; the last one may be one of `FAULTS`."""
    accepted: int
    """How many of them were drafted."""
    decided: bool = True
    """False where the position behind the accepted tokens was left open, and what comes is the next round's."""
    told: Sequence[TokenLogprobs] = ()
    """Of each emitted token, where the request asks for it."""
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


def in_vocabulary(token: int, vocabulary: int) -> int:
    """A token that the engine drew; none where it is one of those that fill up the rows of its output head."""
    return token if token < vocabulary else NO_TOKEN
