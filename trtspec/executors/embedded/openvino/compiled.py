"""Compiled graphs: how they are compiled, and running those that have a paged cache. Owns the cache's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from torch import Tensor

from trtspec.decoding.draft import Draft
from trtspec.decoding.kv_cache import SlotCopy
from trtspec.decoding.plan import Pass
from trtspec.executors.embedded.cache import zeros
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.kernels.attention import Cached
from trtspec.executors.embedded.kernels.products import MOST_ROWS
from trtspec.executors.embedded.openvino.graph import TOKEN_IDS, key_cache, value_cache
from trtspec.executors.embedded.openvino.inputs import Inputs, pass_inputs

BLOCK_TOKENS = 32
"""Positions in a block of OpenVINO's paged attention on CPUs."""
_DEVICE = "CPU"
_PRECISIONS = {torch.float32: ov.Type.f32, torch.bfloat16: ov.Type.bf16}


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine's graphs are compiled and run."""

    dtype: torch.dtype
    """Of the engine."""
    blocks: int
    """Of each cache."""
    threads: int

    @property
    def precision(self) -> ov.Type:
        return _PRECISIONS[computes_in(self.dtype)]


class Compiled:
    """A compiled graph. Outputs of a run are valid until the next one.

    Products widen bfloat16 and int8 weights as they read them. They compute in float32, or in bfloat16 where the engine
    is bfloat16 and the CPU has instructions for it.
    """

    def __init__(self, model: ov.Model, settings: Settings) -> None:
        compiled = ov.Core().compile_model(model, _DEVICE, _properties(settings))
        self._request = compiled.create_infer_request()
        self._inputs = {port.any_name: index for index, port in enumerate(compiled.inputs)}
        self._outputs = range(len(compiled.outputs))

    def set(self, name: str, tensor: ov.Tensor) -> None:
        """Give an input that stays."""
        self._request.set_input_tensor(self._inputs[name], tensor)

    def run(self, inputs: Inputs) -> list[Tensor]:
        """All outputs, in order."""
        for name, array in inputs.items():  # one by one: handing them to `infer` costs half a drafter's step
            self.set(name, ov.Tensor(array, shared_memory=True))
        self._request.infer(share_outputs=True)
        return [torch.from_numpy(self._request.get_output_tensor(index).data) for index in self._outputs]


class FewRows(Protocol):
    """Another one who can run a pass, faster where it has few rows."""

    def run(self, inputs: Inputs, pool: Cached) -> list[Tensor]:
        """The outputs of the graph."""
        ...


class CompiledLayers:
    """A compiled graph with decoder layers, and what they keep between passes."""

    def __init__(self, model: ov.Model, config: DecoderConfig, settings: Settings, few: FewRows | None = None) -> None:
        self._few = few
        self._compiled = Compiled(model, settings)
        shape = (config.num_layers, 2, settings.blocks, config.num_kv_heads, BLOCK_TOKENS, config.head_dim)
        kept = torch.uint16 if settings.precision == ov.Type.bf16 else torch.float32
        self._pool: Cached = zeros(shape, kept, torch.device("cpu")).numpy()
        for layer in range(config.num_layers):
            for name, cache in zip((key_cache(layer), value_cache(layer)), self._pool[layer], strict=True):
                self._compiled.set(name, ov.Tensor(cache, ov.Shape(list(cache.shape)), settings.precision))

    def run(self, plan: Pass, draft: Draft, more: Inputs) -> list[Tensor]:
        """Apply the plan's copies, then run a pass, with further inputs that the graph has."""
        self._move(plan.copies)
        inputs = {**pass_inputs(plan, draft, BLOCK_TOKENS), **more}
        if self._few is not None and len(inputs[TOKEN_IDS]) <= MOST_ROWS:
            return self._few.run(inputs, self._pool)
        return self._compiled.run(inputs)

    def _move(self, copies: Sequence[SlotCopy]) -> None:
        """Apply copies as if at once: all sources are read before any destination is written."""
        if copies:
            sources, source_offsets = _places([copy.source for copy in copies])
            destinations, offsets = _places([copy.destination for copy in copies])
            self._pool[:, :, destinations, :, offsets] = self._pool[:, :, sources, :, source_offsets]


def computes_in(dtype: torch.dtype) -> torch.dtype:
    """What keys and values are kept in, and what graphs compute in, for weights of a type."""
    if dtype is torch.bfloat16 and "BF16" in ov.Core().get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES"):
        return torch.bfloat16
    return torch.float32


def _places(slots: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Block and offset of each slot."""
    return np.divmod(np.array(slots, np.int64), BLOCK_TOKENS)


def _properties(settings: Settings) -> dict[str, object]:
    return {
        "INFERENCE_PRECISION_HINT": settings.precision,
        "KV_CACHE_PRECISION": settings.precision,
        "INFERENCE_NUM_THREADS": settings.threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # other processes use these cores too
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # weights are quantized, activations never
    }
