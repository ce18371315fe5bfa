"""From the streaming results of TensorRT-LLM's executor to our steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.executors.tensorrt_llm.derived import Derived
from trtspec.executors.tensorrt_llm.engine_spec import TARGET
from trtspec.executors.tensorrt_llm.outputs import Ask
from trtspec.executors.tensorrt_llm.request_arguments import request_arguments
from trtspec.types import Finish, FinishReason, Request, StepOutput

CUTS = (FinishReason.EOS, FinishReason.STOP, FinishReason.LENGTH)
"""Ends that a pass may have reached before its last token."""
_REASONS = {
    "LENGTH": FinishReason.LENGTH,
    "TIMED_OUT": FinishReason.DEADLINE,
    "CANCELLED": FinishReason.CANCELLED,
    "NOT_FINISHED": FinishReason.ERROR,
}
_TOLERANCE = 0.01


@dataclass(slots=True)
class Answer:
    """One output that TensorRT-LLM generates by itself. Implements `Output`."""

    request: Request
    output_index: int
    end_id: int | None
    """Known once it was asked for."""
    derived: Derived
    by_temperature: bool = False
    """The engine's mode knows a greedy request by its temperature, and not by its top_k."""
    ended: bool = False

    def ask(self, now: float) -> Ask:
        """All of it, streaming."""
        arguments = request_arguments(self.request, self.output_index, now)
        if self.by_temperature and self.request.sampling.greedy:
            arguments["sampling_config"]["temperature"] = 0.0
        self.end_id = arguments["end_id"]
        return Ask(TARGET, arguments)

    def take(self, result: Any, pass_index: int) -> StepOutput | None:
        """The step of a result; None for one that tells nothing."""
        ids = tuple(result.output_token_ids[0])
        self.ended = result.is_final
        finish = self._finish(result, ids) if result.is_final else None
        if finish is not None and finish.reason is FinishReason.EOS and (not ids or ids[-1] != finish.stop_id):
            ids += (self.end_id,) if self.end_id is not None else ()  # the runtime keeps the end of the text to itself
        cut = finish is not None and finish.reason in CUTS
        passes = self.derived.records(len(ids), result.decoding_iter, pass_index, cut=cut)
        if not ids and finish is None:
            return None
        return StepOutput(self.request.request_id, self.output_index, ids, passes, finish)

    def close(self) -> None:
        """Nothing is kept elsewhere."""

    def _finish(self, result: Any, ids: Sequence[int]) -> Finish:
        name = result.finish_reasons[0].name
        if name == "END_ID":
            return Finish(FinishReason.EOS, self.end_id)
        if name == "STOP_WORDS":
            last = ids[-1] if ids else None
            return Finish(FinishReason.STOP if last in self.request.stop_ids else FinishReason.EOS, last)
        return Finish(_REASONS[name])

    def late(self, now: float) -> StepOutput | None:
        """The runtime keeps the time."""
        return None

    def disagreement(self, result: Any) -> str | None:
        """What the runtime counted itself, where it contradicts what was derived; asked of the last result."""
        mean = result.avg_decoded_tokens_per_iter * result.decoding_iter
        told = self.derived.emitted - (result.finish_reasons[0].name == "END_ID")
        if mean and abs(mean - told) > max(_TOLERANCE * told, 1):
            return f"{told} tokens came, and avg_decoded_tokens_per_iter * decoding_iter is {mean:.1f}"
        metrics, derived, deepest = result.request_perf_metrics, self.derived.accepted, len(self.derived.nodes_by_depth)
        counted = derived if metrics is None else metrics.speculative_decoding.total_accepted_draft_tokens
        if abs(counted - derived) > deepest > 0:
            return f"{derived} accepted tokens were derived and the runtime counted {counted}"
        return None
