"""From TensorRT-LLM's streaming results to our steps, with the records of passes derived from them.

A result of a speculative engine carries the tokens of one step: what it accepted and one of the target's own. The
first one ends the prompt. `decoding_iter` counts steps, so that results which were merged on their way are seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trtspec.types import Finish, FinishReason, PassRecord, Request, StepOutput

_CUTS = (FinishReason.EOS, FinishReason.STOP, FinishReason.LENGTH)
_REASONS = {
    "LENGTH": FinishReason.LENGTH,
    "TIMED_OUT": FinishReason.DEADLINE,
    "CANCELLED": FinishReason.CANCELLED,
    "NOT_FINISHED": FinishReason.ERROR,
}
_TOLERANCE = 0.01


@dataclass(slots=True)
class Answer:
    """One output, while TensorRT-LLM generates it."""

    request: Request
    output_index: int
    end_id: int | None
    nodes_by_depth: tuple[int, ...]
    """Of every draft of the engine; empty without speculation."""
    steps: int = 0
    """`decoding_iter` of the last result."""
    emitted: int = 0
    accepted: int = 0
    drafted: int = 0
    records: list[PassRecord] = field(default_factory=list)

    def take(self, result: Any, pass_index: int) -> StepOutput | None:
        """The step of a result; None for one that tells nothing."""
        ids = tuple(result.output_token_ids[0])
        finish = self._finish(result, ids) if result.is_final else None
        if finish is not None and finish.reason is FinishReason.EOS and (not ids or ids[-1] != finish.stop_id):
            ids += (self.end_id,) if self.end_id is not None else ()  # the runtime keeps the end of the text to itself
        passes = self._passes(ids, result.decoding_iter, pass_index, cut=finish is not None and finish.reason in _CUTS)
        self._count(ids, passes)
        if not ids and finish is None:
            return None
        return StepOutput(self.request.request_id, self.output_index, ids, passes, finish)

    def _finish(self, result: Any, ids: Sequence[int]) -> Finish:
        name = result.finish_reasons[0].name
        if name == "END_ID":
            return Finish(FinishReason.EOS, self.end_id)
        if name == "STOP_WORDS":
            last = ids[-1] if ids else None
            return Finish(FinishReason.STOP if last in self.request.stop_ids else FinishReason.EOS, last)
        return Finish(_REASONS[name])

    def _passes(self, ids: Sequence[int], steps: int, index: int, *, cut: bool) -> tuple[PassRecord, ...]:
        """A record for each step behind these tokens, the prompt's first; steps that were merged share them evenly."""
        began, self.steps = self.steps, max(steps, self.steps)
        if not ids:
            return ()
        prompt = [PassRecord(index, prefill=True, cut=cut and len(ids) == 1)] if not self.emitted else []
        count, most = len(ids) - len(prompt), 1 + len(self.nodes_by_depth)
        merged = min(max(steps - began - len(prompt), -(-count // most)), count)
        records = [self._record(index, len(range(part, count, merged))) for part in range(merged)]
        if cut and records:
            records[-1] = records[-1].cut_to(records[-1].emitted)
        return (*prompt, *records)

    def _record(self, index: int, emitted: int) -> PassRecord:
        return PassRecord(index, self.nodes_by_depth, accepted=emitted - 1, emitted=emitted)

    def _count(self, ids: Sequence[int], passes: Sequence[PassRecord]) -> None:
        self.emitted += len(ids)
        self.accepted += sum(record.accepted for record in passes)
        self.drafted += sum(record.drafted for record in passes)

    def disagreement(self, result: Any) -> str | None:
        """What the runtime counted itself, where it contradicts what was derived; asked of the last result."""
        mean = result.avg_decoded_tokens_per_iter * result.decoding_iter
        hidden = self.end_id is not None and result.finish_reasons[0].name == "END_ID"
        told = self.emitted - hidden
        if mean and abs(mean - told) > max(_TOLERANCE * told, 1):
            return f"{told} tokens came, and avg_decoded_tokens_per_iter * decoding_iter is {mean:.1f}"
        metrics = result.request_perf_metrics
        counted = metrics.speculative_decoding.total_accepted_draft_tokens if metrics is not None else self.accepted
        if self.nodes_by_depth and abs(counted - self.accepted) > len(self.nodes_by_depth):
            return f"{self.accepted} accepted tokens were derived and the runtime counted {counted}"
        return None
