"""Passes of few rows by kernels, from the inputs and over the cache of the compiled graphs.

Compiled products reach half of the memory's speed and cost twice as much from the fifth row on; kernels read weights as
fast as the memory gives them, for up to four rows in nearly the same time, and for eight in less than twice that. So
small batches and the verification of drafts run here, and all else compiled. Kernels compute in float32 whatever the
graph computes in, and share its cache. Nothing here knows a draft or a plan.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter_config import DrafterConfig
from trtspec.executors.embedded.drafter_model import DrafterModel, HeadsModel
from trtspec.executors.embedded.drafter_weights import (
    HeadsWeights,
    NetworkWeights,
    converted_heads,
    converted_network,
)
from trtspec.executors.embedded.kernels.attention import Cached, PagedTokens
from trtspec.executors.embedded.kernels.layers import KernelLayers, KernelProducts
from trtspec.executors.embedded.kernels.products import Matrix
from trtspec.executors.embedded.model import Decoder
from trtspec.executors.embedded.openvino import graph
from trtspec.executors.embedded.openvino.drafter_graph import STATES
from trtspec.executors.embedded.openvino.inputs import Inputs
from trtspec.executors.embedded.weights import Conversion, DecoderWeights, Weight

_ALONE = threading.Lock()
"""Not every way in which Numba runs threads may be entered twice."""


def to_kernels() -> Conversion[Matrix]:
    """Weights as kernels read them; norms and biases as float32."""
    return Conversion(Matrix.of, lambda tensor: tensor.float().contiguous())


def widths(config: DecoderConfig) -> tuple[int, ...]:
    """Of all that a decoder's matrices read, and of its heads."""
    return config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim, config.head_dim


def network_widths(config: DecoderConfig, weights: NetworkWeights[Weight]) -> tuple[int, ...]:
    """Of all that a drafter's matrices read: what is fused may be of another size than its own states."""
    return *widths(config), *(() if weights.fusion is None else (weights.fusion.shape[1],))


@contextmanager
def computing(threads: int) -> Iterator[None]:
    """Kernels run with so many threads."""
    with _ALONE:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
        yield


class FewTargetRows:
    """The target."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights[Weight],
        positions: int,
        vocabulary_size: int,
        features: Sequence[int],
        threads: int,
    ) -> None:
        plain = to_kernels().decoder(weights)
        self._model = Decoder(KernelLayers(config, plain.layers, positions), plain, features)
        self._vocabulary_size = vocabulary_size
        self._threads = threads

    def run(self, inputs: Inputs, pool: Cached) -> list[Tensor]:
        """The outputs of `decoder_graph`."""
        places = _Places.of(inputs)
        with computing(self._threads):
            hidden = self._model.hidden(places.token_ids, places.positions, _paged(inputs, pool))
            logits = self._model.logits(hidden.last[places.scored], self._vocabulary_size)
        return [logits] if hidden.features is None else [logits, hidden.features]


class FewDrafterRows:
    """One module of a drafter."""

    def __init__(
        self, config: DrafterConfig, weights: NetworkWeights[Weight], module: int, positions: int, threads: int
    ) -> None:
        plain = converted_network(weights, to_kernels())
        layers = KernelLayers(config.caches[module], plain.modules[module].layers, positions)
        self._model = DrafterModel(config, plain, module, layers)
        self._threads = threads

    def states(self, features: Tensor) -> Tensor:
        """What the target's features come to: [T, F] -> [T, H]."""
        with computing(self._threads):
            return self._model.states(features)

    def run(self, inputs: Inputs, pool: Cached) -> list[Tensor]:
        """The outputs of `network_graph`."""
        states = torch.from_numpy(inputs[STATES]) if STATES in inputs else None
        with computing(self._threads):
            return [*self._model.run(_Places.of(inputs), states, _paged(inputs, pool))]


class FewHeadsRows:
    """Heads."""

    def __init__(self, config: DrafterConfig, weights: HeadsWeights[Weight], threads: int) -> None:
        self._model = HeadsModel(config, converted_heads(weights, to_kernels()), KernelProducts())
        self._threads = threads

    def run(self, states: Tensor) -> Tensor:
        """[B, H] -> [B, heads, D]."""
        with computing(self._threads):
            return self._model.run(states)


@dataclass(frozen=True, slots=True)
class _Places:
    """Implements `Places`."""

    token_ids: Tensor
    positions: Tensor
    scored: Tensor

    @classmethod
    def of(cls, inputs: Inputs) -> _Places:
        names = (graph.TOKEN_IDS, graph.POSITIONS, graph.SCORED)
        return cls(*(torch.from_numpy(inputs[name]) for name in names))


def _paged(inputs: Inputs, pool: Cached) -> PagedTokens:
    def ints(name: str) -> NDArray[np.int32]:
        return inputs[name].astype(np.int32, copy=False)

    return PagedTokens(
        pool=pool,
        past=ints(graph.PAST_LENGTHS),
        begins=ints(graph.QUERY_BEGINS),
        blocks=ints(graph.BLOCKS),
        block_begins=ints(graph.BLOCK_BEGINS),
        mask=inputs[graph.TREE_MASK].astype(np.uint8, copy=False),
        mask_begins=ints(graph.TREE_MASK_BEGINS),
    )
