"""The target of a training run: its engine folder, its runner with features, and the weights that drafters share.

Drafters learn from what the engine computes, in the form in which it is served.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from trtspec import generation
from trtspec import manifest as manifests
from trtspec.decoding.plan import Runner
from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.executors.embedded.decoder_config import NAME as CONFIG_NAME
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.device import choose_device
from trtspec.executors.embedded.runners import Shape, runner_kind
from trtspec.executors.embedded.weights import (
    DTYPES,
    DecoderWeights,
    Int8Weight,
    LayerWeights,
    Weight,
    load_weights,
)
from trtspec.executors.embedded.weights import NAME as WEIGHTS
from trtspec.manifest import Manifest

_LOW, _FROM_TOP = 2, 3
"""EAGLE-3 (Li et al. 2025) reads a low, a middle and a high layer; these are what its authors' code takes."""


class Target:
    """An engine folder as a teacher."""

    def __init__(self, directory: Path, features: tuple[int, ...] | None = None) -> None:
        """`features` are the hidden states that are kept of every token; else those of EAGLE-3 and the last."""
        self.directory = directory
        self.manifest: Manifest = manifests.read(directory)
        self.config = DecoderConfig.from_json(directory / CONFIG_NAME)
        self.features = features or _usual_features(self.config.num_layers)

    @cached_property
    def weights(self) -> DecoderWeights[Weight]:
        return load_weights(self.directory, self.config)

    @cached_property
    def embedding(self) -> Tensor:
        """[V, H] float32."""
        return as_float(self.weights.embedding)

    def head_rows(self, token_ids: Tensor) -> Tensor:
        """[D, H] float32: the rows of the output head that score these tokens."""
        return as_float(self.weights.head)[token_ids]

    def layer(self, index: int) -> LayerWeights[Weight]:
        return self.weights.layers[index]

    @property
    def eos_ids(self) -> frozenset[int]:
        return generation.read(self.directory).eos_ids

    @property
    def tokenizer_directory(self) -> Path:
        return self.directory / generation.TOKENIZER

    @property
    def sha256(self) -> str:
        """What a proposer names as its target."""
        return self.manifest.target_sha256

    @property
    def form(self) -> str:
        """The engine's weights as they are stored: what it computes depends on it."""
        return self.manifest.artifacts[WEIGHTS].sha256[:12]

    @property
    def block_tokens(self) -> int:
        return runner_kind(self.manifest.runner).block_tokens(0)

    def runner(self, positions: int, slots: int) -> Runner:
        """A runner whose passes give the features, for sequences of so many positions in so many slots."""
        kind = runner_kind(self.manifest.runner)
        shape = Shape(
            config=self.config,
            dtype=DTYPES[self.manifest.dtype],
            device=choose_device("auto", self.manifest.runner),
            positions=positions,
            vocabulary_size=self.manifest.vocabulary_size,
            block_tokens=self.block_tokens,
            blocks=slots // self.block_tokens,
            threads=len(os.sched_getaffinity(0)),
            features=self.features,
        )
        return kind.create(shape, self.weights).runner


def _usual_features(layers: int) -> tuple[int, ...]:
    return (min(_LOW, layers - 1), layers // 2, max(layers - _FROM_TOP, 0), LAST_HIDDEN)


def as_float(stored: Weight) -> Tensor:
    """A stored matrix as float32."""
    return stored.dense(torch.float32) if isinstance(stored, Int8Weight) else stored.float()
