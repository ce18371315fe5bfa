"""Our own verification, over what a plain engine tells of the last positions: its best logits.

A round's prompt is the text so far with the draft behind it, and one token is generated. The rows of the positions from
the last token of the text on are what the target says after each of them. A drafted token stays where it is the
target's own choice, which is the one that the embedded engine makes from the same logits and seed. A position that its
row does not decide ends the round, and the next one has no draft: its one token is the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trtspec.decoding.edits import Editor
from trtspec.decoding.plan import PlanRow
from trtspec.decoding.sampling import FAULTS, ChoiceRows, fault
from trtspec.executors.tensorrt_llm.engine_spec import TOP_LOGITS
from trtspec.executors.tensorrt_llm.loop.deciding import decide
from trtspec.executors.tensorrt_llm.loop.logprobs import token_logprobs
from trtspec.executors.tensorrt_llm.loop.top_rows import Remembered, TopRow, last_rows
from trtspec.executors.tensorrt_llm.loop.verifier import Verdict, engine_fault, round_seed
from trtspec.executors.tensorrt_llm.request_arguments import request_arguments, sampling_arguments
from trtspec.types import Request, SamplingParams

_CONTEXT_ROWS = f"context_{TOP_LOGITS}"


@dataclass(slots=True)
class RowsVerifier:
    """Implements `Verifier`."""

    request: Request
    output_index: int
    sequence_id: int
    """Unique in the engine's life: the editor keeps what it counted under it."""
    editor: Editor
    vocabulary: int
    block_tokens: int
    """Positions of a block of the target's cache."""
    _remembered: Remembered = field(default_factory=Remembered)

    def arguments(self, tokens: Sequence[int], draft: Sequence[int], now: float) -> dict[str, Any]:
        """The engine's own token counts without a draft alone, and is chosen by the request's rules."""
        request, generated = self.request, len(tokens) - len(self.request.prompt)
        sampling = SamplingParams() if draft else _without_ends(request, generated)
        asked = replace(
            request,
            prompt=(*tokens, *draft),
            max_tokens=1,
            eos_ids=frozenset(),
            stop_ids=frozenset(),
            sampling=sampling,
        )
        made = request_arguments(asked, self.output_index, now)
        seed = round_seed(request.seed, self.output_index, len(tokens))
        return made | {
            "streaming": False,
            "sampling_config": sampling_arguments(sampling, seed, len(request.prompt)),
            "output_config": made["output_config"] | {"additional_model_outputs": [TOP_LOGITS]},
        }

    def read(self, tokens: Sequence[int], draft: Sequence[int], result: Any) -> Verdict:
        """Without a draft there is always a token: where the row does not decide it, the engine's own."""
        rows = self._rows(tokens, draft, result)
        emitted, decided = self._walk(tokens, draft, rows)
        if not decided and not draft:
            return self._engines_own(result, rows)
        if emitted and emitted[-1] in FAULTS:
            return Verdict(emitted[:-1], len(emitted) - 1, told=self._told(rows, emitted), fault=fault(emitted[-1]))
        return Verdict(emitted, len(emitted) - decided, decided, self._told(rows, emitted))

    def close(self) -> None:
        self.editor.release([self.sequence_id])

    def _engines_own(self, result: Any, rows: Sequence[TopRow | None]) -> Verdict:
        drawn = [int(token) for token in result.output_token_ids[0][:1]]
        if (wrong := engine_fault(drawn, self.vocabulary)) is not None:
            return Verdict((), 0, fault=wrong)
        return Verdict(drawn, 0, told=self._told(rows, drawn))

    def _rows(self, tokens: Sequence[int], draft: Sequence[int], result: Any) -> list[TopRow | None]:
        """What is told of the text's last position, and of each of the draft's; remembered where the cache hides it."""
        told = [item.output for item in result.additional_outputs if item.name == _CONTEXT_ROWS]
        wanted = 1 + len(draft)
        reused = self._reused(result, len(tokens) + len(draft))
        rows = last_rows(told[0], wanted, reused, self.vocabulary) if told else [None] * wanted
        return self._remembered.merge([*tokens, *draft], rows)

    def _reused(self, result: Any, length: int) -> int:
        """Positions of a prompt whose keys were found: of whole blocks, and never the last one."""
        metrics = result.request_perf_metrics
        blocks = length if metrics is None else metrics.kv_cache_metrics.num_reused_blocks
        return min(blocks * self.block_tokens, length - 1)

    def _walk(
        self, tokens: Sequence[int], draft: Sequence[int], rows: Sequence[TopRow | None]
    ) -> tuple[list[int], bool]:
        """The target's choices along the draft, as far as it goes their way; whether the last one was decided."""
        emitted: list[int] = []
        for index, row in enumerate(rows):
            token = None if row is None else self._choose(row, tokens, draft[:index])
            if token is None:
                return emitted, False
            emitted.append(token)
            if tuple(draft[index : index + 1]) != (token,):
                break
        return emitted, True

    def _choose(self, row: TopRow, tokens: Sequence[int], path: Sequence[int]) -> int | None:
        request = self.request
        place = PlanRow(
            sequence_id=self.sequence_id,
            request=request,
            history=tokens,
            start=len(tokens) - 1,
            fed=1,
            samples=True,
            prefill=len(tokens) == len(request.prompt),
            max_depth=0,
            max_nodes=0,
            blocks=(),
            choice=self.output_index,
            scored=1,
        )
        edits = self.editor.edits(place, path, row.values.new_empty(1, self.vocabulary))
        position = place.next_position + len(path)
        where = ChoiceRows([request.sampling], [request.seed], [position], [self.output_index], [edits])
        return decide(row, where, self.vocabulary)

    def _told(self, rows: Sequence[TopRow | None], emitted: Sequence[int]) -> Sequence[Any]:
        top = self.request.logprobs
        return () if top is None else [token_logprobs(*pair, top) for pair in zip(rows, emitted, strict=False)]


def _without_ends(request: Request, generated: int) -> SamplingParams:
    """Its sampling for one token, with what must not end it among the forbidden words."""
    sampling = request.sampling
    held = sorted(request.end_ids) if generated < sampling.min_tokens else []
    return replace(sampling, min_tokens=0, bad_words=(*sampling.bad_words, *((id_,) for id_ in held)))
