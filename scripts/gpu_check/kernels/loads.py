"""What is measured: batches of verification, and arrays of logits for them, one after the other out of a large pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BYTES = 2
"""Of a logit: bfloat16."""
MOST_TURNS = 1000
"""A graph of more calls takes long to record; only tiny loads would need them."""


@dataclass(frozen=True, slots=True)
class Load:
    """A batch of sequences with drafts of one length."""

    batch: int
    nodes: int
    vocabulary: int

    @property
    def rows(self) -> int:
        """Places of all sequences: a root and its nodes each."""
        return self.batch * (self.nodes + 1)

    def __str__(self) -> str:
        return f"B {self.batch}, N {self.nodes}, V {self.vocabulary:,}"


FULL = [
    Load(batch, nodes, vocabulary) for vocabulary in (128_256, 32_000) for batch in (64, 8, 1) for nodes in (64, 16, 4)
]
"""The largest first: if time runs out, the small ones are left out."""
TINY = [Load(2, 2, 160)]


@dataclass(frozen=True, slots=True)
class Pool:
    """Random logits on a device, of which calls take turns: what one reads is not in a cache when it comes again.

    A turn of all calls reads at least `cached` bytes, twice what the device's last cache holds.
    """

    logits: Tensor
    cached: int

    @classmethod
    def on(cls, device: torch.device, most_bytes: int, cached: int, seed: int) -> Pool:
        generator = torch.Generator(device).manual_seed(seed)
        count = (most_bytes + cached) // BYTES
        logits = torch.empty(count, dtype=torch.bfloat16, device=device)
        return cls(logits.normal_(std=3.0, generator=generator), cached)

    def turns(self, shapes: Sequence[tuple[int, ...]]) -> list[list[Tensor]]:
        """Arrays of these shapes, as often as there are to be calls, which overlap nowhere."""
        sizes = [torch.Size(shape).numel() for shape in shapes]
        count = min(MOST_TURNS, max(1, -(-self.cached // (sum(sizes) * BYTES))))
        parts = self.logits[: count * sum(sizes)].view(count, -1)
        return [[piece.view(shape) for piece, shape in zip(part.split(sizes), shapes, strict=True)] for part in parts]


def last_cache(device: torch.device) -> int:
    """Bytes of the device's L2; 0 for a CPU, whose interpreter is slower than any memory."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0
