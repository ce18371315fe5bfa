"""Where the loop's drafts come from, and how long they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from trtspec.decoding.proposer import BatchView, SequenceView
from trtspec.decoding.proposers.ngram import NgramProposer
from trtspec.executors.tensorrt_llm.engine_spec import DRAFT
from trtspec.executors.tensorrt_llm.outputs import Ask
from trtspec.executors.tensorrt_llm.request_arguments import request_arguments
from trtspec.types import SamplingParams

_LONGEST_PAUSE = 31


class Drafts(Protocol):
    """Proposes a chain of tokens for one output at a time."""

    def propose(self, sequence: SequenceView, now: float) -> Sequence[int] | Ask:
        """At most `max_depth` tokens, or what to ask for them."""
        ...

    def release(self, sequence_id: int) -> None:
        """The output ended, and its id does not come back."""
        ...


class NoDrafts:
    """Rounds of one token."""

    def propose(self, sequence: SequenceView, now: float) -> Sequence[int]:
        return ()

    def release(self, sequence_id: int) -> None:
        """Nothing is kept."""


class NgramDrafts:
    """Prompt lookup, as the embedded engine does it."""

    def __init__(self, proposer: NgramProposer) -> None:
        self._proposer = proposer

    def propose(self, sequence: SequenceView, now: float) -> Sequence[int]:
        draft = self._proposer.propose(BatchView((sequence,)))
        tokens: list[int] = draft.tokens[0, : int(draft.counts[0])].tolist()
        return tokens

    def release(self, sequence_id: int) -> None:
        self._proposer.propose(BatchView((), (sequence_id,)))


class EngineDrafts:
    """The best tokens of a draft engine, which batches what all outputs ask of it."""

    def propose(self, sequence: SequenceView, now: float) -> Ask:
        asked = replace(
            sequence.request,
            prompt=tuple(sequence.tokens),
            max_tokens=sequence.max_depth,
            sampling=SamplingParams(),
            eos_ids=frozenset(),
            stop_ids=frozenset(),
        )
        return Ask(DRAFT, request_arguments(asked, sequence.choice, now) | {"streaming": False})

    def release(self, sequence_id: int) -> None:
        """Its prefix cache is its own."""


@dataclass(slots=True)
class Depth:
    """How deep an output drafts: twice as deep as before after a draft that stayed whole, else one beyond what stayed.

    After a position that was not decided it rests for a round; where that was the first one, so that the round was for
    nothing, for more rounds each time.
    """

    most: int
    now: int = 0
    resting: int = 0
    """Rounds without a draft to come."""
    pause: int = 0

    def __post_init__(self) -> None:
        self.now = self.most

    def coming(self) -> int:
        """Of the coming round."""
        if self.resting:
            self.resting -= 1
            return 0
        return self.now

    def learn(self, drafted: int, accepted: int, *, decided: bool) -> None:
        """What became of a round's draft."""
        if not drafted:
            return
        self.now = min(2 * drafted if accepted == drafted else accepted + 1, self.most)
        self.pause = min(2 * self.pause + 1, _LONGEST_PAUSE) if not (decided or accepted) else 0
        self.resting = self.pause if decided else max(self.pause, 1)
