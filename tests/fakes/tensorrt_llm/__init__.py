"""A strict double of TensorRT-LLM 1.2.1, for machines without one.

With `tests/fakes` on the path, `import tensorrt_llm` finds it. Names, arguments and types are those of
`scripts/typings/signatures.json`, and what else would be silently ignored upstream is an error here. Models are
converted and divided among ranks as upstream does it; nothing is compiled, and what an engine says is what our own
engine says of the same Hugging Face folder, in float32. Of an engine's ranks, which are MPI's, rank 0 computes all, and
the others wait for its end. Drafters are put together again from the tensors of all ranks, so that a wrong conversion
shows.

What runs underneath where upstream has what we have not: lookahead is prompt lookup; EAGLE with typical acceptance is
sampled exactly, as a threshold of 0 would have it; weights are never quantized; GLM-4.5 is a Qwen3, its layers dense
and the experts of its modules without effect. The double knows no beams, logits and adapters, and guided
decoding in plain engines alone.

Faults are planted by environment variables, read when an executor, an LLM or an engine is made:

TRTLLM_DOUBLE_OOM=1               the constructor raises the runtime's out-of-memory error
TRTLLM_DOUBLE_ERROR_EVERY=N       every Nth request that is fetched is refused
TRTLLM_DOUBLE_FORWARD_ERROR_AT=N  the Nth pass fails and ends all that are active; later passes are well
TRTLLM_DOUBLE_HANG_AT=N           the Nth pass never returns
TRTLLM_DOUBLE_ABORT_AT=N          the process aborts in the Nth pass
TRTLLM_DOUBLE_PASS_SECONDS=x      each pass takes at least so long
TRTLLM_DOUBLE_BUILD_ERROR=1       a rank is not compiled
TRTLLM_DOUBLE_FAULTY_RANK=N       the others are of rank N, and not of rank 0
TRTLLM_DOUBLE_KERNELS=1           plugins of an engine run as kernels, in Triton's interpreter, and not as their twins
"""

from __future__ import annotations

import tensorrt_llm.executor.utils
import tensorrt_llm.llmapi  # noqa: F401  (declare types of arguments)
from tensorrt_llm._double.llm import LLM
from tensorrt_llm._double.llm_values import SamplingParams
from tensorrt_llm._table import declare

__version__ = "1.2.1"
globals().update(declare(__name__, LLM, SamplingParams))
