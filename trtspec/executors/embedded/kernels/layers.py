"""Decoder layers by kernels: the twin of `model.Layers` for few float32 rows on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.kernels.attention import PagedTokens, Rotation
from trtspec.executors.embedded.kernels.layer import KernelLayer
from trtspec.executors.embedded.kernels.products import Floats, Matrix, floats_of, normalised, padded, product
from trtspec.executors.embedded.rope import RotaryTable
from trtspec.executors.embedded.weights import LayerWeights


class KernelProducts:
    """Implements `Products`."""

    def product(self, x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
        return torch.from_numpy(product(_padded(x), weight, floats_of(bias)))[: len(x)]

    def rows(self, weight: Matrix, indices: Tensor) -> Tensor:
        return weight.at(indices)

    def first(self, weight: Matrix, count: int) -> Matrix:
        return weight.first(count)


class KernelLayers(KernelProducts):
    """Implements `LayerStack`."""

    def __init__(self, config: DecoderConfig, layers: Sequence[LayerWeights[Matrix]], positions: int) -> None:
        self.config = config
        self._epsilon = np.float32(config.rms_norm_eps)
        self._layers = [KernelLayer(config, item) for item in layers]
        self._rotary = RotaryTable(config, positions, torch.float32, torch.device("cpu"))

    def run(self, x: Tensor, positions: Tensor, attention: PagedTokens, read: Tensor | None = None) -> Iterator[Tensor]:
        count = len(x)
        rotation = Rotation(*(part.squeeze(1).numpy() for part in self._rotary.at(positions)))
        state, first = _padded(x), None if read is None else _padded(read)
        for index, layer in enumerate(self._layers):
            yield torch.from_numpy(state)[:count]
            state = layer.run(state, first if index == 0 else None, rotation, index, attention)
        yield torch.from_numpy(state)[:count]

    def norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        if weight is None:
            return x
        return torch.from_numpy(normalised(x.contiguous().numpy(), weight.numpy(), self._epsilon))


def _padded(x: Tensor) -> Floats:
    """[T, H] with rows of zeros, so that there are as many as kernels take."""
    more = padded(len(x)) - len(x)
    whole: Floats = (pad(x, (0, 0, 0, more)) if more else x.contiguous()).numpy()
    return whole
