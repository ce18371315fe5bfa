"""A decoder layer that can be trained: over padded batches of whole sequences, and over what follows each position.

Its parameters bear the names of an engine's weights. It computes what `trtspec.executors.embedded.model` does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.rope import RotaryTable, Rotation, rotate

Memory = list[tuple[Tensor, Tensor]]
"""Keys and values of a layer by step, [B, kv_heads, L, D] each: of all positions, then of what follows each one."""


class Layer(nn.Module):
    """Rotary attention with grouped keys, then SwiGLU. What the attention reads may be wider than the residual."""

    def __init__(self, config: DecoderConfig, *, input_norm: bool = True, state_norm: bool = False) -> None:
        super().__init__()
        self._config = config
        inputs = (1 + state_norm) * config.hidden_size
        self.input_norm = nn.Parameter(torch.ones(config.hidden_size)) if input_norm else None
        self.state_norm = nn.Parameter(torch.ones(config.hidden_size)) if state_norm else None
        heads = config.num_heads + 2 * config.num_kv_heads
        self.qkv = nn.Parameter(_drawn(heads * config.head_dim, inputs))
        self.qkv_bias = nn.Parameter(torch.zeros(heads * config.head_dim)) if config.qkv_bias else None
        self.query_norm = nn.Parameter(torch.ones(config.head_dim)) if config.qk_norm else None
        self.key_norm = nn.Parameter(torch.ones(config.head_dim)) if config.qk_norm else None
        self.output = nn.Parameter(_drawn(config.hidden_size, config.num_heads * config.head_dim))
        self.post_norm = nn.Parameter(torch.ones(config.hidden_size))
        self.gate_up = nn.Parameter(_drawn(2 * config.intermediate_size, config.hidden_size))
        self.down = nn.Parameter(_drawn(config.hidden_size, config.intermediate_size))

    def forward(self, residual: Tensor, inputs: Tensor, rotation: Rotation, memory: Memory) -> Tensor:
        """[B, L, H], [B, L, inputs] -> [B, L, H]; appends the keys and values of this step to the memory."""
        config, eps = self._config, self._config.rms_norm_eps
        heads = linear(inputs, self.qkv, self.qkv_bias).unflatten(-1, (-1, config.head_dim))
        query, key, value = heads.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=2)
        query, key = (
            rotate(normalised(query, self.query_norm, eps), rotation),
            rotate(normalised(key, self.key_norm, eps), rotation),
        )
        memory.append((key.transpose(1, 2), value.transpose(1, 2)))
        x = residual + linear(_attend(query.transpose(1, 2), memory).transpose(1, 2).flatten(2), self.output)
        gate, up = linear(normalised(x, self.post_norm, eps), self.gate_up).chunk(2, dim=-1)
        return x + linear(silu(gate) * up, self.down)

    def read(self, x: Tensor) -> Tensor:
        """The attention's input where it is the residual's own."""
        return normalised(x, self.input_norm, self._config.rms_norm_eps)


def normalised(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMSNorm; without a weight there is none."""
    return x if weight is None else rms_norm(x, weight.shape, weight, eps)


class Rotations:
    """The rotations of sequences, or of what follows each of their positions; the table grows as it is asked for."""

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        self._table: RotaryTable | None = None
        self._size = 0

    def __call__(self, length: int, step: int, device: torch.device) -> Rotation:
        """Those of positions step, step + 1, ..., [L, 1, D]."""
        if self._table is None or length + step > self._size:
            self._size = 2 * (length + step)
            self._table = RotaryTable(self._config, self._size, torch.float32, device)
        return self._table.at(torch.arange(step, step + length, device=device))


def _attend(query: Tensor, memory: Memory) -> Tensor:
    """[B, heads, L, D] -> the same.

    In step 0 a position sees those up to it. In step j each position has a continuation of its own that began there:
    it sees what its beginning saw, and its own j earlier and present steps.
    """
    (keys, values), own = memory[0], memory[1:]
    if not own:
        return scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    batch, heads, length, width = query.shape
    stacked = query.view(batch, keys.shape[1], -1, length, width) / math.sqrt(width)
    context = stacked @ keys.unsqueeze(2).transpose(3, 4)
    hidden = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    scores = [context.masked_fill(hidden, -math.inf)]
    scores += [(stacked * key.unsqueeze(2)).sum(-1, keepdim=True) for key, _ in own]
    shares = torch.cat(scores, dim=-1).softmax(dim=-1)
    mixed = shares[..., :length] @ values.unsqueeze(2)
    for index, (_, value) in enumerate(own, length):
        mixed = mixed + shares[..., index : index + 1] * value.unsqueeze(2)
    return mixed.reshape(batch, heads, length, width)


def _drawn(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns) / math.sqrt(columns)
