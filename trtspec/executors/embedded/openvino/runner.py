"""Runs a compiled decoder pass by pass. Owns the compiled model and the cache's memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray

from trtspec.decoding.draft import Draft
from trtspec.decoding.kv_cache import SlotCopy
from trtspec.decoding.plan import Pass, TargetOutput
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.openvino.graph import FEATURES, LOGITS, DecoderGraph, key_cache, value_cache
from trtspec.executors.embedded.openvino.inputs import pass_inputs
from trtspec.executors.embedded.weights import DecoderWeights, Weight

BLOCK_TOKENS = 32
"""Positions in a block of OpenVINO's paged attention on CPUs."""
DEVICE = "CPU"
_PRECISIONS = {torch.float32: ov.Type.f32, torch.bfloat16: ov.Type.bf16}


class OpenVinoRunner:
    """Implements `Runner`. Logits of a pass are valid until the next one.

    Products widen bfloat16 and int8 weights as they read them. They compute in float32, or in bfloat16 where the engine
    is bfloat16 and the CPU has instructions for it.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights[Weight],
        *,
        positions: int,
        vocabulary_size: int,
        blocks: int,
        dtype: torch.dtype,
        threads: int,
        features: Sequence[int] = (),
    ) -> None:
        precision = _PRECISIONS[computes_in(dtype)]
        self._weights = weights  # compiled products pack their matrices when first used
        model = DecoderGraph(config, weights, positions, vocabulary_size, features).build()
        self._has_features = bool(features)
        settings = _settings(precision, threads)
        self._request = ov.Core().compile_model(model, DEVICE, settings).create_infer_request()
        shape = (config.num_layers, 2, blocks, config.num_kv_heads, BLOCK_TOKENS, config.head_dim)
        self._pool = np.zeros(shape, np.int16 if precision == ov.Type.bf16 else np.float32)
        for layer in range(config.num_layers):
            for name, cache in zip((key_cache(layer), value_cache(layer)), self._pool[layer], strict=True):
                self._request.set_tensor(name, ov.Tensor(cache, ov.Shape(list(cache.shape)), precision))

    def forward(self, plan: Pass, draft: Draft) -> TargetOutput:
        self._move(plan.copies)
        inputs = pass_inputs(plan, draft, BLOCK_TOKENS)
        outputs = self._request.infer(inputs, share_inputs=True, share_outputs=True)
        features = torch.from_numpy(outputs[FEATURES]).clone() if self._has_features else None
        return TargetOutput(torch.from_numpy(outputs[LOGITS]), features)

    def _move(self, copies: Sequence[SlotCopy]) -> None:
        """Apply copies as if at once: all sources are read before any destination is written."""
        if copies:
            sources, source_offsets = _places([copy.source for copy in copies])
            destinations, offsets = _places([copy.destination for copy in copies])
            self._pool[:, :, destinations, :, offsets] = self._pool[:, :, sources, :, source_offsets]


def _places(slots: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Block and offset of each slot."""
    return np.divmod(np.array(slots, np.int64), BLOCK_TOKENS)


def computes_in(dtype: torch.dtype) -> torch.dtype:
    """The type of activations, keys and values for weights of a type."""
    if dtype is torch.bfloat16 and "BF16" in ov.Core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES"):
        return torch.bfloat16
    return torch.float32


def _settings(precision: ov.Type, threads: int) -> dict[str, object]:
    return {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # other processes use these cores too
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # weights are quantized, activations never
    }
