"""The shape of an engine's drafter, and `drafter.json` of an engine folder, which holds exactly it.

Every kind of drafter is one set of values, so that what differs between them is data. The weights are in
`drafter.safetensors`; `drafter_weights` has their names.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trtspec.errors import EngineFolderError
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.json_file import UNREADABLE, check_fields, read_object

NAME = "drafter.json"
TOKENS, FEATURES, FUSED_FEATURES, HEADS = "tokens", "features", "fused_features", "heads"
"""Kinds: a whole model; layers over token and state; layers whose attention reads both, over fused features; heads."""


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """One drafter.

    `tokens`: a decoder of its own. `features` (EAGLE, MTP): x = fuse(token embedding beside state), then the layers.
    `fused_features` (EAGLE-3): the state is a fusion of several of the target's hidden states; the first layer's
    attention reads normalised embedding and state side by side. `heads` (Medusa): residual blocks on the last hidden
    state, no attention.
    """

    kind: str
    decoder: DecoderConfig | None
    """Layers, norms and rotation; its `vocab_size` is the drafter's own, reduced or not. None for heads."""
    features: tuple[int, ...]
    """The target's hidden states that are read, as `Needs.features` counts them; none for a whole model."""
    vocabulary_size: int
    """Tokens that can be drafted; `token_ids` in the weights says which, where they are fewer than the target's."""
    own_embedding: bool
    """False: the target's embedding is used."""
    own_head: bool
    """False: the rows of the target's output head that belong to the drafted tokens are used. A whole model with tied
    embeddings of its own has a head of its own, too: them."""
    modules: int = 1
    """`features`: modules with weights of their own, one a depth, the last one again beyond; `heads`: the heads."""
    normalised_inputs: bool = False
    """`features`: embedding and state pass an RMSNorm before they are fused (MTP)."""
    first_input_norm: bool = True
    """`features`: the first layer has an input norm; EAGLE's has none."""
    final_norm: bool = True
    """A norm stands before the head; EAGLE's layers predict what the target's head reads as it is."""
    normalised_states: bool = False
    """The state that is handed on is what the head reads, and not what went into the final norm."""
    norm_before_residual: bool = False
    """`fused_features`: the residual is the normalised state."""
    blocks: int = 1
    """`heads`: residual blocks of each head."""

    @property
    def caches(self) -> tuple[DecoderConfig, ...]:
        """The layers of each module that keeps keys and values."""
        return () if self.decoder is None else (self.decoder,) * self.modules

    @property
    def reads_states(self) -> bool:
        """Each token is fed beside a state."""
        return self.kind in (FEATURES, FUSED_FEATURES)

    def positions(self, most: int) -> int:
        """Longest sequence of a drafter beside a target that goes so far."""
        return min([most, *(cache.max_position_embeddings for cache in self.caches)])

    @property
    def tied(self) -> bool:
        """A whole model whose own embedding is its head."""
        own = self.kind == TOKENS and self.own_embedding and self.own_head
        return own and self.decoder is not None and self.decoder.tie_word_embeddings

    @classmethod
    def from_json(cls, path: Path) -> DrafterConfig:
        """Read the file of an engine folder; a key too many or too few is a damaged engine."""
        try:
            found = cls.from_dict(read_object(path))
            check_fields(found)
        except UNREADABLE as error:
            raise EngineFolderError(f"{path} is damaged ({error!s:.200}); build the engine again") from error
        return found

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> DrafterConfig:
        known = {item.name for item in fields(cls)}
        if set(value) != known:
            raise ValueError(f"its keys differ from the known ones in {', '.join(sorted(set(value) ^ known))}")
        decoder = value["decoder"]
        changed = {"decoder": decoder and DecoderConfig.from_dict(decoder), "features": tuple(value["features"])}
        return cls(**{**value, **changed})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_dict(), indent=2) + "\n")
