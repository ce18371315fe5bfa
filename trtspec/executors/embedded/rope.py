"""Rotary position embedding (Su et al. 2021), half-split as Llama stores it, with Llama 3.1's frequency stretch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.executors.embedded.decoder_config import DecoderConfig, Llama3RopeScaling


class Rotation(NamedTuple):
    """Cosines and sines of T positions, in the model's dtype."""

    cos: Tensor  # [T, 1, head_dim]
    sin: Tensor  # [T, 1, head_dim]


class RotaryTable:
    """All rotations of a model, computed once in float32."""

    def __init__(self, config: DecoderConfig, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), _frequencies(config))
        angles = torch.cat([angles, angles], dim=1).unsqueeze(1)
        self._cos = angles.cos().to(device, dtype)
        self._sin = angles.sin().to(device, dtype)

    def at(self, positions: Tensor) -> Rotation:
        """The rotations of some positions, [T] int64."""
        return Rotation(self._cos[positions], self._sin[positions])


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate queries or keys, [T, heads, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * rotation.cos + torch.cat([-second, first], dim=-1) * rotation.sin


def _frequencies(config: DecoderConfig) -> Tensor:
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**steps
    return _stretch(frequencies, config.rope_scaling) if config.rope_scaling else frequencies


def _stretch(frequencies: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    """Slow waves are divided by the factor, fast ones stay, those between are blended."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelengths
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies
