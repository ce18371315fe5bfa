"""A model class of TensorRT-LLM whose network tells the best logits of every position, as the output `TopLogits`.

The model's own logits are those of the tokens that a request is sampled after. A draft is verified as the end of a
prompt, so the head runs over the hidden states of all tokens here, and two plugins keep of each row what our own loop
reads: [tokens, 2M + 1] in float32, of the ids that may be emitted. The engine holds their code and needs no Python to
run; to build one, TensorRT and Triton are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorrt_llm._common import default_trtnet
from tensorrt_llm.functional import Tensor, _create_tensor
from tensorrt_llm.models.modeling_utils import DecoderModelForCausalLM

from builders.tensorrt_llm.top_logits import TopLogits
from plugins.aot import CompiledKernel
from plugins.contract import KernelSpec
from plugins.defs import add_layer, register_plugin
from trtspec.executors.tensorrt_llm.engine_spec import TOP_LOGITS

Told = Callable[[KernelSpec, CompiledKernel], None]


def tapped(
    base: type[DecoderModelForCausalLM], top: TopLogits, *, vocabulary: int, architecture: int, told: Told
) -> type[DecoderModelForCausalLM]:
    """A subclass of a model's class, whose weights and checkpoints are the same; `told` is told of compiled kernels.

    `vocabulary` ids may be emitted: what follows them in a row pads it. One such class a process: plugins are
    registered once.
    """
    for spec in top.specs:
        register_plugin(spec, compiled=told)

    def forward(self: DecoderModelForCausalLM, *arguments: Any, **named: Any) -> Any:
        """The model's own, which returns last the hidden states of all tokens, after the last norm."""
        found = base.forward(self, *arguments, **named)
        logits = self.lm_head(found[-1])
        _best(logits, top, vocabulary, architecture).mark_output(TOP_LOGITS, top.dtype)
        return found

    return type(base.__name__, (base,), {"forward": forward})


def _best(logits: Tensor, top: TopLogits, vocabulary: int, architecture: int) -> Tensor:
    """One plugin a launch; each takes all that the one before it leaves."""
    passed = [logits]
    network = default_trtnet()
    for spec in top.specs:
        inputs = [tensor.trt_tensor for tensor in passed]
        layer = add_layer(network, spec, inputs, architecture=architecture, vocabulary=vocabulary)
        passed = [_create_tensor(layer.get_output(index), layer) for index in range(len(spec.outputs))]
    return passed[0]
