"""What is asked of a training run: one frozen value, and the drafter it means for a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter_config import FEATURES, FUSED_FEATURES, HEADS, TOKENS, DrafterConfig
from trtspec.types import Method

MEASURED_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Style:
    """What a method's training begins with; flags change the numbers."""

    summary: str
    layers: int
    """Layers of the drafter; residual blocks of each head."""
    depth: int
    """So many tokens ahead it learns to guess, from its own states where it has some."""
    learning_rate: float
    state_loss: float = 0.0
    """Weight of the distance to the target's states."""


STYLES: Mapping[Method, Style] = {
    Method.EAGLE: Style("a layer over the target's last state", 1, 4, 1e-3, state_loss=0.2),
    Method.EAGLE3: Style("a layer over three of the target's states", 1, 4, 1e-3),
    Method.MTP: Style("a normalised layer over the target's last state", 1, 4, 1e-3),
    Method.MEDUSA: Style("residual heads on the target's last state", 1, 4, 2e-3),
    Method.DRAFT_MODEL: Style("some layers of the target, distilled", 6, 1, 5e-4),
}
"""By method that has something to learn."""


@dataclass(frozen=True, slots=True)
class Training:
    """The settings that decide what is learnt from given conversations."""

    method: Method
    layers: int
    depth: int
    draft_vocabulary: int
    tokens_per_step: int
    learning_rate: float
    state_loss: float
    seed: int

    @property
    def deepens(self) -> bool:
        """Depths are one network's, used again, and not heads of their own."""
        return self.method is not Method.MEDUSA

    @property
    def measured_depth(self) -> int:
        """So deep is measured: heads go no deeper than their count."""
        return max(self.depth, MEASURED_DEPTH) if self.deepens else self.depth

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "method": self.method.value}


def drafter_config(
    training: Training, target: DecoderConfig, features: tuple[int, ...], vocabulary: int
) -> DrafterConfig:
    """The drafter that is trained; `features` are the cached states of the target, the last one last."""
    decoder = replace(target, num_layers=training.layers, vocab_size=vocabulary, tie_word_embeddings=False)
    shared = partial(DrafterConfig, vocabulary_size=vocabulary, own_embedding=False, own_head=False)
    last = features[-1:]
    if training.method is Method.MEDUSA:
        return shared(HEADS, None, last, modules=training.depth, blocks=training.layers, final_norm=False)
    if training.method is Method.DRAFT_MODEL:
        return shared(TOKENS, decoder, ())
    if training.method is Method.EAGLE3:
        return shared(FUSED_FEATURES, decoder, features[:-1])
    return shared(FEATURES, decoder, last, normalised_inputs=training.method is Method.MTP, normalised_states=True)
