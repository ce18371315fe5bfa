"""The runners that an engine can be built for, and what each needs to know before the cache is sized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trtspec.decoding.drafting import Drafter
from trtspec.decoding.plan import Runner
from trtspec.errors import ConfigError
from trtspec.executors.embedded.cache import CachePool, slot_bytes
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter import EagerHeads, EagerNetwork
from trtspec.executors.embedded.drafter_config import DrafterConfig
from trtspec.executors.embedded.drafter_model import DrafterModel, HeadsModel
from trtspec.executors.embedded.drafter_weights import DrafterWeights, HeadsWeights, converted_heads, converted_network
from trtspec.executors.embedded.graphs import CudaGraphs
from trtspec.executors.embedded.model import EagerProducts, Layers, eager_decoder
from trtspec.executors.embedded.runner import EagerRunner
from trtspec.executors.embedded.weights import Conversion, DecoderWeights, Weight, widening


@dataclass(frozen=True, slots=True)
class Shape:
    """What a runner is created for."""

    config: DecoderConfig
    dtype: torch.dtype
    device: torch.device
    positions: int
    """Longest sequence."""
    vocabulary_size: int
    block_tokens: int
    blocks: int
    threads: int
    features: tuple[int, ...] = ()
    """Hidden states that the proposer reads, as in `Needs`."""
    graphs: bool = False
    """Passes of few tokens are replayed as CUDA graphs."""


@dataclass(frozen=True, slots=True)
class StoredDrafter:
    """A drafter as an engine folder holds it."""

    config: DrafterConfig
    weights: DrafterWeights


@dataclass(frozen=True, slots=True)
class Networks:
    """All that computes with weights."""

    runner: Runner
    drafter: Drafter


class RunnerKind(Protocol):
    """One way to run a decoder and its drafter."""

    def block_tokens(self, asked: int) -> int:
        """Positions in a block of the cache, where 0 asks for nothing. Raises `ConfigError`."""
        ...

    def slot_bytes(self, config: DecoderConfig, dtype: torch.dtype) -> int:
        """Memory of one position in the cache of some layers."""
        ...

    def create(
        self, shape: Shape, weights: DecoderWeights[Weight], drafter: StoredDrafter | None = None
    ) -> Networks: ...


class Eager:
    """Plain PyTorch."""

    def block_tokens(self, asked: int) -> int:
        return asked or 16

    def slot_bytes(self, config: DecoderConfig, dtype: torch.dtype) -> int:
        return slot_bytes(config, dtype)

    def create(self, shape: Shape, weights: DecoderWeights[Weight], drafter: StoredDrafter | None = None) -> Networks:
        if shape.device.type == "cuda":
            torch.set_float32_matmul_precision("highest")  # no TensorFloat-32: float32 engines promise equal text
        plain = widening(shape.dtype, shape.device)
        model = eager_decoder(shape.config, plain.decoder(weights), shape.positions, shape.features)
        record = CudaGraphs() if shape.graphs else None
        runner = EagerRunner(model, _pool(shape, shape.config), shape.block_tokens, shape.vocabulary_size, record)
        return Networks(runner, _eager_drafter(shape, drafter, plain) if drafter else Drafter())


def _eager_drafter(shape: Shape, drafter: StoredDrafter, to: Conversion[Tensor]) -> Drafter:
    config, weights = drafter.config, drafter.weights
    token_ids = None if weights.token_ids is None else weights.token_ids.to(shape.device)
    if isinstance(weights, HeadsWeights):
        heads = EagerHeads(HeadsModel(config, converted_heads(weights, to), EagerProducts()), shape.dtype, token_ids)
        return Drafter(heads=heads, vocabulary_size=shape.vocabulary_size, features=config.features)
    plain = converted_network(weights, to)
    positions = config.positions(shape.positions)
    models = [
        DrafterModel(config, plain, index, Layers(cache, plain.modules[index].layers, positions))
        for index, cache in enumerate(config.caches)
    ]
    pools = [_pool(shape, cache) for cache in config.caches]
    modules = tuple(
        EagerNetwork(model, pool, shape.block_tokens, positions, token_ids)
        for model, pool in zip(models, pools, strict=True)
    )
    return Drafter(modules, vocabulary_size=shape.vocabulary_size, features=config.features)


def _pool(shape: Shape, config: DecoderConfig) -> CachePool:
    return CachePool(config, shape.blocks * shape.block_tokens, shape.dtype, shape.device)


class OpenVino:
    """Compiled for the CPU at hand."""

    def block_tokens(self, asked: int) -> int:
        from trtspec.executors.embedded.openvino.compiled import BLOCK_TOKENS

        if asked not in (0, BLOCK_TOKENS):
            raise ConfigError(
                f"--kv-block-tokens is {asked} and the openvino runner's blocks hold {BLOCK_TOKENS}; leave it out, or "
                "build with --runner eager"
            )
        return BLOCK_TOKENS

    def slot_bytes(self, config: DecoderConfig, dtype: torch.dtype) -> int:
        from trtspec.executors.embedded.openvino.compiled import computes_in

        return slot_bytes(config, computes_in(dtype))

    def create(self, shape: Shape, weights: DecoderWeights[Weight], drafter: StoredDrafter | None = None) -> Networks:
        from trtspec.executors.embedded.openvino.compiled import Settings
        from trtspec.executors.embedded.openvino.drafter import openvino_drafter
        from trtspec.executors.embedded.openvino.runner import OpenVinoRunner

        runner = OpenVinoRunner(
            shape.config,
            weights,
            positions=shape.positions,
            vocabulary_size=shape.vocabulary_size,
            blocks=shape.blocks,
            dtype=shape.dtype,
            threads=shape.threads,
            features=shape.features,
        )
        if drafter is None:
            return Networks(runner, Drafter())
        settings = Settings(shape.dtype, shape.blocks, shape.threads)
        made = openvino_drafter(drafter.config, drafter.weights, shape.positions, shape.vocabulary_size, settings)
        return Networks(runner, made)


RUNNERS: Mapping[str, RunnerKind] = {"eager": Eager(), "openvino": OpenVino()}


def runner_kind(name: str) -> RunnerKind:
    """The runner that a manifest names. Raises where this version or this machine lacks it."""
    if name not in RUNNERS:
        raise ConfigError(f"the engine was built for the runner {name!r}; this version has {', '.join(RUNNERS)}")
    return RUNNERS[name]
