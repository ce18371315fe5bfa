"""One output of a request, generated in rounds: each is a request of its own to a plain engine.

A round's prompt is the text so far with a draft behind it, and one token is generated. What the engine tells of the
last positions, from the last token of the text on, is what the target says after each of them. A drafted token stays
where it is the target's own choice, which is the one that the embedded engine makes from the same logits and seed. A
position that its row does not decide ends a round, and the next one has no draft: its one token is the engine's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from trtspec.decoding.edits import Editor
from trtspec.decoding.plan import PlanRow
from trtspec.decoding.proposer import SequenceView
from trtspec.decoding.sampling import FAULTS, NO_TOKEN, ChoiceRows, fault
from trtspec.decoding.sequence import ending
from trtspec.executors.tensorrt_llm.engine_spec import TARGET, TOP_LOGITS
from trtspec.executors.tensorrt_llm.loop.deciding import decide
from trtspec.executors.tensorrt_llm.loop.drafts import Depth, Drafts
from trtspec.executors.tensorrt_llm.loop.logprobs import token_logprobs
from trtspec.executors.tensorrt_llm.loop.top_rows import Remembered, TopRow, last_rows
from trtspec.executors.tensorrt_llm.outputs import Ask
from trtspec.executors.tensorrt_llm.request_arguments import request_arguments, sampling_arguments
from trtspec.types import Finish, FinishReason, PassRecord, Request, SamplingParams, StepOutput

_CONTEXT_ROWS = f"context_{TOP_LOGITS}"
_INTERRUPTED = {"TIMED_OUT": FinishReason.DEADLINE, "CANCELLED": FinishReason.CANCELLED}


@dataclass(frozen=True, slots=True)
class Engine:
    """What all outputs of an engine share."""

    drafts: Drafts
    editor: Editor
    vocabulary: int
    longest: int
    """Most tokens of a round's prompt."""


@dataclass(slots=True)
class Rounds:
    """Implements `Output`."""

    request: Request
    output_index: int
    engine: Engine
    sequence_id: int
    """Unique in the engine's life."""
    ended: bool = False
    _tokens: list[int] = field(default_factory=list)
    _draft: tuple[int, ...] | None = None
    """Of the coming round or the one under way; None where none was proposed yet."""
    _drafting: bool = False
    """The draft engine was asked."""
    _depth: Depth = field(default_factory=lambda: Depth(0))
    _remembered: Remembered = field(default_factory=Remembered)
    _empty: tuple[PassRecord, ...] = ()
    """Rounds that decided nothing, to be told with the next one that does."""
    _fault: int | None = None

    def __post_init__(self) -> None:
        self._tokens = list(self.request.prompt)
        self._depth = Depth(self.request.max_draft_tokens)

    def ask(self, now: float) -> Ask:
        """The next round, or what its draft is asked for. Raises the fault that the last one ended with."""
        if self._fault is not None:
            raise fault(self._fault)
        if self._draft is None:
            proposed = self._propose(now)
            if isinstance(proposed, Ask):
                self._drafting = True
                return proposed
            self._draft = tuple(proposed)
        return Ask(TARGET, self._arguments(self._draft, now))

    def take(self, result: Any, pass_index: int) -> StepOutput | None:
        """What a round emits. A result of the draft engine is the coming round's draft."""
        reason = _INTERRUPTED.get(result.finish_reasons[0].name)
        if self._drafting:
            self._drafting, self._draft = False, self._usable(() if reason else result.output_token_ids[0])
            return None
        draft, self._draft = self._draft or (), None
        if reason is not None:
            return self._step((), None, Finish(reason), [])
        rows = self._rows(result, draft)
        emitted, decided = self._walk(draft, rows)
        self._depth.learn(len(draft), len(emitted) - decided, decided=decided)
        if not decided and not draft:
            emitted, decided = [self._engines_own(result)], True
        return self._emit(draft, emitted, len(emitted) - decided, rows, pass_index)

    def late(self, now: float) -> StepOutput | None:
        """Each round has a time of its own for the runtime, which it hardly ever uses up."""
        if self.request.deadline is None or now < self.request.deadline or self._fault is not None:
            return None
        return self._step((), None, Finish(FinishReason.DEADLINE), [])

    def disagreement(self, _: Any) -> str | None:
        """Nothing is derived here that the runtime counts, too."""
        return None

    def close(self) -> None:
        """Forget what is kept elsewhere under its id."""
        self.engine.drafts.release(self.sequence_id)
        self.engine.editor.release([self.sequence_id])

    @property
    def _generated(self) -> int:
        return len(self._tokens) - len(self.request.prompt)

    def _propose(self, now: float) -> Sequence[int] | Ask:
        """No draft while the prompt is not computed, nor where a position is to be decided by the engine."""
        room = min(self.request.max_tokens - self._generated - 1, self.engine.longest - len(self._tokens))
        if not self._generated:
            return ()
        depth = min(self._depth.coming(), room)
        if depth <= 0:
            return ()
        view = SequenceView(self.sequence_id, self._tokens, depth, depth, self.request, self.output_index, ())
        return self.engine.drafts.propose(view, now)

    def _arguments(self, draft: Sequence[int], now: float) -> dict[str, Any]:
        """Of one round. The engine's own token counts without a draft alone, and is chosen by the request's rules."""
        request = self.request
        sampling = SamplingParams() if draft else _without_ends(request, self._generated)
        text = (*self._tokens, *draft)
        asked = replace(
            request, prompt=text, max_tokens=1, eos_ids=frozenset(), stop_ids=frozenset(), sampling=sampling
        )
        made = request_arguments(asked, self.output_index, now)
        seed = _seed(request.seed, self.output_index, len(self._tokens))
        return made | {
            "streaming": False,
            "sampling_config": sampling_arguments(sampling, seed, len(request.prompt)),
            "output_config": made["output_config"] | {"additional_model_outputs": [TOP_LOGITS]},
        }

    def _rows(self, result: Any, draft: Sequence[int]) -> list[TopRow | None]:
        """What is told of the text's last position, and of each of the draft's."""
        told = next(item.output for item in result.additional_outputs if item.name == _CONTEXT_ROWS)
        return self._remembered.merge([*self._tokens, *draft], last_rows(told, 1 + len(draft), self.engine.vocabulary))

    def _usable(self, draft: Sequence[int]) -> tuple[int, ...]:
        """As far as its tokens are of the target's vocabulary, which a draft model may exceed."""
        return tuple(takewhile(lambda token: token < self.engine.vocabulary, draft))

    def _engines_own(self, result: Any) -> int:
        """The token that the engine drew; none where it is beyond the vocabulary."""
        token = int(result.output_token_ids[0][0])
        return token if token < self.engine.vocabulary else NO_TOKEN

    def _walk(self, draft: Sequence[int], rows: Sequence[TopRow | None]) -> tuple[list[int], bool]:
        """The target's choices along the draft, as far as it goes their way; whether the last one was decided."""
        emitted: list[int] = []
        for index, row in enumerate(rows):
            token = None if row is None else self._choose(row, draft[:index])
            if token is None:
                return emitted, False
            emitted.append(token)
            if tuple(draft[index : index + 1]) != (token,):
                break
        return emitted, True

    def _choose(self, row: TopRow, path: Sequence[int]) -> int | None:
        request, engine = self.request, self.engine
        place = PlanRow(
            sequence_id=self.sequence_id,
            request=request,
            history=self._tokens,
            start=len(self._tokens) - 1,
            fed=1,
            samples=True,
            prefill=not self._generated,
            max_depth=0,
            max_nodes=0,
            blocks=(),
            choice=self.output_index,
            scored=1,
        )
        edits = engine.editor.edits(place, path, row.values.new_empty(1, engine.vocabulary))
        position = place.next_position + len(path)
        where = ChoiceRows([request.sampling], [request.seed], [position], [self.output_index], [edits])
        return decide(row, where, engine.vocabulary)

    def _emit(
        self,
        draft: Sequence[int],
        emitted: Sequence[int],
        accepted: int,
        rows: Sequence[TopRow | None],
        pass_index: int,
    ) -> StepOutput | None:
        """Append what a round decided, up to the output's end."""
        good = emitted[:-1] if emitted and emitted[-1] in FAULTS else emitted
        kept, finish = ending(self.request, self.request.max_tokens - self._generated, good) or (len(good), None)
        if finish is None and len(good) < len(emitted):
            self._fault = emitted[-1]
        record = PassRecord(pass_index, (1,) * len(draft), accepted, len(emitted), prefill=not self._generated)
        if finish is not None or self._fault is not None:
            record = record.cut_to(kept)
        return self._step(good[:kept], record, finish, rows)

    def _step(
        self, tokens: Sequence[int], record: PassRecord | None, finish: Finish | None, rows: Sequence[TopRow | None]
    ) -> StepOutput | None:
        passes = self._empty + (() if record is None else (record,))
        self._tokens += tokens
        self.ended = finish is not None
        if not tokens and finish is None:
            self._empty = passes
            return None
        self._empty, top = (), self.request.logprobs
        told = () if top is None else tuple(token_logprobs(*pair, top) for pair in zip(rows, tokens, strict=False))
        return StepOutput(self.request.request_id, self.output_index, tuple(tokens), passes, finish, told)


def _without_ends(request: Request, generated: int) -> SamplingParams:
    """Its sampling for one token, with what must not end it among the forbidden words."""
    sampling = request.sampling
    held = sorted(request.end_ids) if generated < sampling.min_tokens else []
    return replace(sampling, min_tokens=0, bad_words=(*sampling.bad_words, *((id_,) for id_ in held)))


def _seed(seed: int, output_index: int, position: int) -> int:
    """Of one token: the engine begins each request with the same noise for the same seed."""
    words = f"{seed} {output_index} {position}".encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")
