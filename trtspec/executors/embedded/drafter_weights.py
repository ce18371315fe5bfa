"""The weights of an engine's drafter: their names in `drafter.safetensors`, and reading them.

Names, where M counts modules, H is the drafter's hidden size and F what it reads of the target. Matrices may be int8
with scales, as the target's.
- `token_ids` [D] int64: the target's id of each drafted token, ascending; absent where all can be drafted.
- `embedding` [V, H]: absent where the target's is used (`own_embedding`).
- `head` [D, H]: absent where rows of the target's are used (`own_head`), or of the drafter's own embedding (`tied`).
- `tokens`: as in the target's `weights.safetensors`, with every layer and `norm`.
- `features`: `modules.M.fuse` [H, 2 H] (embedding first), `modules.M.fuse_bias` [H] or absent,
  `modules.M.token_norm` and `.state_norm` [H] with `normalised_inputs`, `modules.M.layers.N.*` with the parts of the
  target's layers (`input_norm` of layer 0 absent without `first_input_norm`), `modules.M.norm` [H] with `final_norm`.
- `fused_features`: `modules.0.fuse` [H, F], `modules.0.layers.N.*` where `qkv` of layer 0 reads [2 H] (embedding
  first), its `input_norm` is the embedding's, and `modules.0.layers.0.state_norm` [H] the state's; `modules.0.norm`.
- `heads`: `heads.K.blocks.B.weight` [H, H] and `.bias` [H]; `heads.K.head` [D, H] with `own_head`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from torch import Tensor

from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter_config import FEATURES, FUSED_FEATURES, HEADS, TOKENS, DrafterConfig
from trtspec.executors.embedded.weights import (
    EMBEDDING,
    HEAD,
    NORM,
    Conversion,
    DecoderWeights,
    Int8Weight,
    LayerWeights,
    M,
    StoredTensors,
    W,
    Weight,
    picked_rows,
    read_tensors,
)

NAME = "drafter.safetensors"
TOKEN_IDS = "token_ids"


def module_name(module: int, part: str) -> str:
    """The stored name of a module's part."""
    return f"modules.{module}.{part}"


def block_name(head: int, block: int, part: str) -> str:
    return f"heads.{head}.blocks.{block}.{part}"


def head_name(head: int) -> str:
    return f"heads.{head}.head"


@dataclass(frozen=True, slots=True)
class ModuleWeights(Generic[W]):
    """Layers with what leads into them. A part that the kind of drafter lacks is None."""

    token_norm: Tensor | None  # [H]
    state_norm: Tensor | None  # [H]
    fuse: W | None  # [H, 2 H]; without it, the first layer's attention reads token and state side by side
    fuse_bias: Tensor | None  # [H]
    layers: tuple[LayerWeights[W], ...]
    norm: Tensor | None  # [H]


@dataclass(frozen=True, slots=True)
class NetworkWeights(Generic[W]):
    """A drafter that reads tokens."""

    token_ids: Tensor | None  # [D] int64
    embedding: W  # [V, H]
    head: W  # [D, H]; without `token_ids` it may be longer
    fusion: W | None  # [H, F]: from the target's features to a state, where that is not the same
    modules: tuple[ModuleWeights[W], ...]


@dataclass(frozen=True, slots=True)
class BlockWeights(Generic[W]):
    """A residual block of a head."""

    weight: W  # [H, H]
    bias: Tensor  # [H]


@dataclass(frozen=True, slots=True)
class HeadsWeights(Generic[W]):
    """Heads on the target's last hidden state."""

    token_ids: Tensor | None  # [D] int64
    blocks: tuple[tuple[BlockWeights[W], ...], ...]  # of each head
    outputs: tuple[W, ...]  # [D, H] each: one a head, or one for all; without `token_ids` they may be longer


DrafterWeights = NetworkWeights[Weight] | HeadsWeights[Weight]


def load_drafter(directory: Path, config: DrafterConfig, target: DecoderWeights[Weight]) -> DrafterWeights:
    """Map all tensors, and the target's where the drafter uses those."""
    read = _heads if config.kind == HEADS else _network
    return read_tensors(directory / NAME, lambda stored: read(stored, config, target))


def converted_network(weights: NetworkWeights[Weight], to: Conversion[M]) -> NetworkWeights[M]:
    """The same weights in another form."""
    return NetworkWeights(
        token_ids=weights.token_ids,
        embedding=to.matrix(weights.embedding),
        head=to.matrix(weights.head),
        fusion=to.matrix_if(weights.fusion),
        modules=tuple(
            ModuleWeights(
                token_norm=to.vector_if(module.token_norm),
                state_norm=to.vector_if(module.state_norm),
                fuse=to.matrix_if(module.fuse),
                fuse_bias=to.vector_if(module.fuse_bias),
                layers=tuple(to.layer(item) for item in module.layers),
                norm=to.vector_if(module.norm),
            )
            for module in weights.modules
        ),
    )


def converted_heads(weights: HeadsWeights[Weight], to: Conversion[M]) -> HeadsWeights[M]:
    """The same weights in another form."""
    return HeadsWeights(
        token_ids=weights.token_ids,
        blocks=tuple(
            tuple(BlockWeights(to.matrix(block.weight), to.vector(block.bias)) for block in blocks)
            for blocks in weights.blocks
        ),
        outputs=tuple(to.matrix(item) for item in weights.outputs),
    )


def _network(stored: StoredTensors, config: DrafterConfig, target: DecoderWeights[Weight]) -> NetworkWeights[Weight]:
    token_ids = stored.optional(TOKEN_IDS)
    embedding = stored.matrix(EMBEDDING) if config.own_embedding else target.embedding
    modules = tuple(_module(stored, config, decoder, index) for index, decoder in enumerate(config.caches))
    if config.own_head and not config.tied:
        head = stored.matrix(HEAD)
    else:
        head = _rows(embedding if config.tied else target.head, token_ids, modules[0].layers[0].down)
    return NetworkWeights(
        token_ids=token_ids,
        embedding=embedding,
        head=head,
        fusion=stored.matrix(module_name(0, "fuse")) if config.kind == FUSED_FEATURES else None,
        modules=modules,
    )


def _module(stored: StoredTensors, config: DrafterConfig, decoder: DecoderConfig, index: int) -> ModuleWeights[Weight]:
    fused = config.kind == FUSED_FEATURES
    prefix = "" if config.kind == TOKENS else module_name(index, "")
    token_norm, state_norm = ("layers.0.input_norm", "layers.0.state_norm") if fused else ("token_norm", "state_norm")
    return ModuleWeights(
        token_norm=stored.tensor_if(fused or config.normalised_inputs, prefix + token_norm),
        state_norm=stored.tensor_if(fused or config.normalised_inputs, prefix + state_norm),
        fuse=stored.matrix(prefix + "fuse") if config.kind == FEATURES else None,
        fuse_bias=stored.optional(prefix + "fuse_bias"),
        layers=stored.layers(decoder, prefix, first_norm=config.first_input_norm and not fused),
        norm=stored.tensor_if(config.final_norm, prefix + NORM),
    )


def _heads(stored: StoredTensors, config: DrafterConfig, target: DecoderWeights[Weight]) -> HeadsWeights[Weight]:
    token_ids = stored.optional(TOKEN_IDS)
    heads = range(config.modules)
    blocks = tuple(_blocks(stored, config, head) for head in heads)
    if config.own_head:
        outputs = tuple(stored.matrix(head_name(head)) for head in heads)
    else:
        outputs = (_rows(target.head, token_ids, blocks[0][0].weight),)
    return HeadsWeights(token_ids, blocks, outputs)


def _blocks(stored: StoredTensors, config: DrafterConfig, head: int) -> tuple[BlockWeights[Weight], ...]:
    return tuple(
        BlockWeights(stored.matrix(block_name(head, block, "weight")), stored.tensor(block_name(head, block, "bias")))
        for block in range(config.blocks)
    )


def _rows(matrix: Weight, token_ids: Tensor | None, own: Weight) -> Weight:
    """The output rows of the drafted tokens; a copy takes the form of the drafter's own matrices."""
    if token_ids is None:
        return matrix
    picked = picked_rows(matrix, token_ids)
    return Int8Weight.of(picked) if isinstance(own, Int8Weight) and isinstance(picked, Tensor) else picked
