"""The identity of a target: a hash of its weights, the same in every file format, dtype and quantization of an engine.

It is the SHA-256 over the engine's weights in the order of `builders.layout`, each as its name, a zero byte, and its
values as little-endian bfloat16. A drafter's card names the target that it was trained for by it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch

from builders.checkpoint import Checkpoint
from builders.layout import layout
from builders.progress import progress_bars


@dataclass(frozen=True, slots=True)
class Identity:
    """A hash that grows by one weight at a time."""

    _digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, name: str, weight: torch.Tensor) -> None:
        """The next weight of the layout, in float as the checkpoint has it."""
        self._digest.update(name.encode() + b"\0")
        self._digest.update(weight.to(torch.bfloat16).contiguous().flatten().view(torch.uint8).numpy().data)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def target_sha256(checkpoint: Checkpoint) -> str:
    """Read a whole checkpoint, weight by weight, for its identity alone; a build finds it while it packs."""
    identity, items = Identity(), layout(checkpoint.config)
    with progress_bars() as bars:
        for item in bars.track(items, description="identity"):
            identity.add(item.name, torch.cat([checkpoint.read(name) for name in item.sources]))
    return identity.sha256
