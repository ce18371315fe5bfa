"""Runs the compiled target pass by pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtspec.decoding.draft import Draft
from trtspec.decoding.plan import Pass, TargetOutput
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.kernels.products import fits
from trtspec.executors.embedded.openvino.compiled import CompiledLayers, Settings
from trtspec.executors.embedded.openvino.decoder_graph import FEATURES, LOGITS, decoder_graph
from trtspec.executors.embedded.openvino.few_rows import FewTargetRows, widths
from trtspec.executors.embedded.weights import DecoderWeights, Weight


class OpenVinoRunner:
    """Implements `Runner`. Logits of a pass are valid until the next one."""

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
        self._weights = weights  # compiled products pack their matrices when first used
        self._has_features = bool(features)
        model = decoder_graph(config, weights, positions, vocabulary_size, features)
        few = (
            FewTargetRows(config, weights, positions, vocabulary_size, features, threads)
            if fits(*widths(config))
            else None
        )
        self._layers = CompiledLayers(model, config, Settings(dtype, blocks, threads), few)

    def forward(self, plan: Pass, draft: Draft) -> TargetOutput:
        outputs = self._layers.run(plan, draft, {})
        return TargetOutput(outputs[LOGITS], outputs[FEATURES].clone() if self._has_features else None)
