"""One output of a request, generated in rounds: each is a request of its own to the target, with a draft to verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from trtspec.decoding.proposer import SequenceView
from trtspec.decoding.sequence import ending
from trtspec.errors import RequestError
from trtspec.executors.tensorrt_llm.engine_spec import TARGET
from trtspec.executors.tensorrt_llm.limiting import Limiter
from trtspec.executors.tensorrt_llm.loop.drafts import Depth, Drafts
from trtspec.executors.tensorrt_llm.loop.verifier import Verdict, Verifier
from trtspec.executors.tensorrt_llm.outputs import Ask
from trtspec.types import Finish, FinishReason, PassRecord, Request, StepOutput

_INTERRUPTED = {"TIMED_OUT": FinishReason.DEADLINE, "CANCELLED": FinishReason.CANCELLED}


@dataclass(frozen=True, slots=True)
class Shared:
    """What all outputs of an engine have in common."""

    drafts: Drafts
    vocabulary: int
    longest: int
    """Most tokens of a round's prompt and draft."""
    limiter: Limiter = field(default_factory=Limiter)


@dataclass(slots=True)
class Rounds:
    """Implements `Output`."""

    request: Request
    output_index: int
    shared: Shared
    sequence_id: int
    """Unique in the engine's life."""
    verifier: Verifier
    ended: bool = False
    _tokens: list[int] = field(default_factory=list)
    _draft: tuple[int, ...] | None = None
    """Of the coming round or the one under way; None where none was proposed yet."""
    _drafting: bool = False
    """The draft engine was asked."""
    _depth: Depth = field(default_factory=lambda: Depth(0))
    _empty: tuple[PassRecord, ...] = ()
    """Rounds that decided nothing, to be told with the next one that does."""
    _fault: RequestError | None = None
    _doubt: str | None = None

    def __post_init__(self) -> None:
        self._tokens = list(self.request.prompt)
        self._depth = Depth(self.request.max_draft_tokens)

    def ask(self, now: float) -> Ask:
        """The next round, or what its draft is asked for. Raises the fault that the last one ended with."""
        if self._fault is not None:
            raise self._fault
        if self._draft is None:
            proposed = self._propose(now)
            if isinstance(proposed, Ask):
                self._drafting = True
                return proposed
            self._draft = tuple(proposed)
        return Ask(TARGET, self.verifier.arguments(self._tokens, self._draft, now))

    def take(self, result: Any, pass_index: int) -> StepOutput | None:
        """What a round emits. A result of the draft engine is the coming round's draft."""
        reason = _INTERRUPTED.get(result.finish_reasons[0].name)
        if self._drafting:
            self._drafting, self._draft = False, self._usable(() if reason else result.output_token_ids[0])
            return None
        draft, self._draft = self._draft or (), None
        if reason is not None:
            return self._step((), None, Finish(reason))
        verdict = self.verifier.read(self._tokens, draft, result)
        self._doubt = verdict.doubt
        self._depth.learn(len(draft), verdict.accepted, decided=verdict.decided)
        return self._emit(draft, verdict, pass_index)

    def late(self, now: float) -> StepOutput | None:
        """Each round has a time of its own for the runtime, which it hardly ever uses up."""
        if self.request.deadline is None or now < self.request.deadline or self._fault is not None:
            return None
        return self._step((), None, Finish(FinishReason.DEADLINE))

    def disagreement(self, _: Any) -> str | None:
        """Of the last round, once."""
        doubt, self._doubt = self._doubt, None
        return doubt

    def close(self) -> None:
        """Forget what is kept elsewhere under its id."""
        self.shared.drafts.release(self.sequence_id)
        self.verifier.close()

    @property
    def _generated(self) -> int:
        return len(self._tokens) - len(self.request.prompt)

    def _propose(self, now: float) -> Sequence[int] | Ask:
        """No draft while the prompt is not computed, nor where a position is to be decided by the engine."""
        room = min(self.request.max_tokens - self._generated - 1, self.shared.longest - len(self._tokens))
        if not self._generated:
            return ()
        depth = self.shared.limiter.limit.cap(min(self._depth.coming(), room))
        if depth <= 0:
            return ()
        view = SequenceView(self.sequence_id, self._tokens, depth, depth, self.request, self.output_index, ())
        return self.shared.drafts.propose(view, now)

    def _usable(self, draft: Sequence[int]) -> tuple[int, ...]:
        """As far as its tokens are of the target's vocabulary, which a draft model may exceed."""
        return tuple(takewhile(lambda token: token < self.shared.vocabulary, draft))

    def _emit(self, draft: Sequence[int], verdict: Verdict, pass_index: int) -> StepOutput | None:
        """Append what a round decided, up to the output's end."""
        emitted = verdict.emitted
        room = self.request.max_tokens - self._generated
        kept, finish = ending(self.request, room, emitted) or (len(emitted), None)
        self._fault = verdict.fault if finish is None else None
        record = PassRecord(pass_index, (1,) * len(draft), verdict.accepted, len(emitted), prefill=not self._generated)
        if finish is not None or self._fault is not None:
            record = record.cut_to(kept)
        return self._step(emitted[:kept], record, finish, verdict)

    def _step(
        self, tokens: Sequence[int], record: PassRecord | None, finish: Finish | None, verdict: Verdict | None = None
    ) -> StepOutput | None:
        passes = self._empty + (() if record is None else (record,))
        self._tokens += tokens
        self.ended = finish is not None
        if not tokens and finish is None:
            self._empty = passes
            return None
        self._empty = ()
        told = () if verdict is None else tuple(verdict.told[: len(tokens)])
        return StepOutput(self.request.request_id, self.output_index, tuple(tokens), passes, finish, told)
