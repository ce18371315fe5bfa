"""The runners that an engine can be built for, and what each needs to know before the cache is sized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from trtspec.decoding.plan import Runner
from trtspec.errors import ConfigError
from trtspec.executors.embedded.cache import CachePool, slot_bytes
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.device import check_room, dense_bytes
from trtspec.executors.embedded.graphs import CudaGraphs
from trtspec.executors.embedded.model import Decoder
from trtspec.executors.embedded.runner import EagerRunner
from trtspec.executors.embedded.weights import DecoderWeights, Weight, dense


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


class RunnerKind(Protocol):
    """One way to run a decoder."""

    def block_tokens(self, asked: int) -> int:
        """Positions in a block of the cache, where 0 asks for nothing. Raises `ConfigError`."""
        ...

    def slot_bytes(self, config: DecoderConfig, dtype: torch.dtype) -> int:
        """Memory of one position in the cache."""
        ...

    def create(self, shape: Shape, weights: DecoderWeights[Weight]) -> Runner: ...


class Eager:
    """Plain PyTorch."""

    def block_tokens(self, asked: int) -> int:
        return asked or 16

    def slot_bytes(self, config: DecoderConfig, dtype: torch.dtype) -> int:
        return slot_bytes(config, dtype)

    def create(self, shape: Shape, weights: DecoderWeights[Weight]) -> Runner:
        slots = shape.blocks * shape.block_tokens
        if shape.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(shape.device)
            check_room(dense_bytes(weights, shape.dtype), slots * slot_bytes(shape.config, shape.dtype), free)
            torch.set_float32_matmul_precision("highest")  # no TensorFloat-32: float32 engines promise equal text
        model = Decoder(shape.config, dense(weights, shape.dtype, shape.device), shape.positions, shape.features)
        pool = CachePool(shape.config, slots, shape.dtype, shape.device)
        record = CudaGraphs() if shape.graphs else None
        return EagerRunner(model, pool, shape.block_tokens, shape.vocabulary_size, record)


class OpenVino:
    """Compiled for the CPU at hand."""

    def block_tokens(self, asked: int) -> int:
        from trtspec.executors.embedded.openvino.runner import BLOCK_TOKENS

        if asked not in (0, BLOCK_TOKENS):
            raise ConfigError(
                f"--kv-block-tokens is {asked} and the openvino runner's blocks hold {BLOCK_TOKENS}; leave it out, or "
                "build with --runner eager"
            )
        return BLOCK_TOKENS

    def slot_bytes(self, config: DecoderConfig, dtype: torch.dtype) -> int:
        from trtspec.executors.embedded.openvino.runner import computes_in

        return slot_bytes(config, computes_in(dtype))

    def create(self, shape: Shape, weights: DecoderWeights[Weight]) -> Runner:
        from trtspec.executors.embedded.openvino.runner import OpenVinoRunner

        return OpenVinoRunner(
            shape.config,
            weights,
            positions=shape.positions,
            vocabulary_size=shape.vocabulary_size,
            blocks=shape.blocks,
            dtype=shape.dtype,
            threads=shape.threads,
            features=shape.features,
        )


RUNNERS: Mapping[str, RunnerKind] = {"eager": Eager(), "openvino": OpenVino()}


def runner_kind(name: str) -> RunnerKind:
    """The runner that a manifest names. Raises where this version or this machine lacks it."""
    if name not in RUNNERS:
        raise ConfigError(f"the engine was built for the runner {name!r}; this version has {', '.join(RUNNERS)}")
    return RUNNERS[name]
