"""From the outputs of TensorRT-LLM's PyTorch flow to our steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtspec.executors.tensorrt_llm.answers import CUTS
from trtspec.executors.tensorrt_llm.derived import Derived
from trtspec.types import Finish, FinishReason, Request, StepOutput

_REASONS = {
    "length": FinishReason.LENGTH,
    "timeout": FinishReason.DEADLINE,
    "cancelled": FinishReason.CANCELLED,
}


@dataclass(slots=True)
class LlmAnswer:
    """One output, while the LLM generates it."""

    request: Request
    output_index: int
    end_id: int
    derived: Derived

    def take(self, output: Any, pass_index: int) -> StepOutput | None:
        """What is new in an output; None where nothing is."""
        answered = output.outputs[0]
        ids, finish = tuple(answered.token_ids_diff), self._finish(answered)
        if finish is not None and finish.stop_id is not None and (not ids or ids[-1] != finish.stop_id):
            ids += (finish.stop_id,)  # the end of the text is not told
        cut = finish is not None and finish.reason in CUTS
        passes = self.derived.records(len(ids), output.decoding_iter, pass_index, cut=cut)
        if not ids and finish is None:
            return None
        return StepOutput(self.request.request_id, self.output_index, ids, passes, finish)

    def _finish(self, answered: Any) -> Finish | None:
        """Ends of the text and stop ids are both told as `stop`, the latter with a reason."""
        if answered.finish_reason is None:
            return None
        if answered.finish_reason != "stop":
            return Finish(_REASONS.get(answered.finish_reason, FinishReason.ERROR))
        if answered.stop_reason is None:
            return Finish(FinishReason.EOS, self.end_id)
        id_ = int(answered.stop_reason)
        return Finish(FinishReason.STOP if id_ in self.request.stop_ids else FinishReason.EOS, id_)
