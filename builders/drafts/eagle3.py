"""EAGLE-3 as SafeAILab/EAGLE stores it.

`config.json` is that of a Llama with one layer and adds `draft_vocab_size`. `fc` fuses what goes into layers 2, n // 2
and n - 3 of the target's n (`modeling_llama_kv.py`); the layer is `midlayer`, whose attention reads the embedding
under `input_layernorm` beside the state under `hidden_norm`; `norm` and `lm_head` follow. `d2t` holds, of each drafted
token, the target's id minus the drafter's; `t2d` marks the target's ids that can be drafted (`cnets.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from builders.checkpoint import Checkpoint
from builders.drafts.card import Card
from builders.drafts.eagle_layers import USUAL, check_vocabulary, check_width, eagle_decoder
from builders.drafts.layout import module_layer_shapes
from builders.drafts.source import DraftSource, OpenedDraft, check_items, check_token_ids, layer, one
from builders.layout import Packed
from builders.model_config import size
from builders.tensor_files import TensorFiles, open_tensors
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.drafter_config import FUSED_FEATURES, DrafterConfig
from trtspec.executors.embedded.drafter_weights import module_name
from trtspec.executors.embedded.weights import EMBEDDING, HEAD, layer_name
from trtspec.types import Method

LAYER = "midlayer."
_EMBEDDING = "embed_tokens.weight"
_OFFSETS, _MARKS = "d2t", "t2d"
_MAPPING = frozenset({_OFFSETS, _MARKS})


@dataclass(frozen=True, slots=True)
class Variant:
    """What differs between the folders that hold an EAGLE-3 drafter."""

    prefix: str = LAYER
    draft_vocabulary: int | None = None
    """None where no config tells: it is the target's."""
    features: tuple[int, ...] | None = None
    """None for the usual three."""
    norm_before_residual: bool = False
    normalised_states: bool = False
    trained_embedding: bool = False
    """Its embedding is not a copy of the target's."""


def open_eagle3(path: Path, raw: Mapping[str, Any]) -> OpenedDraft:
    """The files tell no settings and no target."""
    where = path / "config.json"
    count = size(raw, "draft_vocab_size", where) if raw.get("draft_vocab_size") is not None else None
    source = partial(eagle3_source, path, raw, Variant(draft_vocabulary=count))
    return OpenedDraft(path, "eagle3", Card(Method.EAGLE3, speculative=USUAL), source)


def eagle3_source(path: Path, raw: Mapping[str, Any], variant: Variant, target: Checkpoint) -> DraftSource:
    """The drafter; `raw` describes its layer."""
    files = open_tensors(path, integers=_MAPPING)
    decoder = eagle_decoder(raw, path / "config.json", files.tensors, variant.prefix)
    own_embedding = variant.trained_embedding or decoder.hidden_size != target.config.hidden_size
    if _EMBEDDING not in files.tensors:
        check_width(path, decoder, target.config)
    check_vocabulary(path, decoder.vocab_size, target.config)
    config = DrafterConfig(
        kind=FUSED_FEATURES,
        decoder=decoder,
        features=usual_features(target, path) if variant.features is None else variant.features,
        vocabulary_size=variant.draft_vocabulary or decoder.vocab_size,
        own_embedding=own_embedding,
        own_head=True,
        norm_before_residual=variant.norm_before_residual,
        normalised_states=variant.normalised_states,
    )
    items = _items(config, decoder.hidden_size, variant.prefix, target)
    check_items(items, files.tensors, path, _MAPPING | {_EMBEDDING})
    return DraftSource(path, config, tuple(items), files.read, token_ids=_token_ids(files, config, target))


def usual_features(target: Checkpoint, path: Path) -> tuple[int, ...]:
    """What goes into an early, a middle and a late layer."""
    count = target.config.num_layers
    chosen = (2, count // 2, count - 3)
    if sorted(set(chosen)) != list(chosen) or chosen[0] < 0:
        raise CheckpointError(
            f"--draft {path} reads the target's layers {list(chosen)} and the target has {count} layers, too few for "
            "three different ones in order; give a drafter that was made for this target"
        )
    return chosen


def _items(config: DrafterConfig, hidden: int, prefix: str, target: Checkpoint) -> list[Packed]:
    fused = len(config.features) * target.config.hidden_size
    items = [one(module_name(0, "fuse"), "fc.weight", hidden, fused)]
    items += layer(
        module_layer_shapes(config, 0), lambda part: prefix + part, lambda part: module_name(0, layer_name(0, part))
    )
    items.append(one(module_name(0, "norm"), "norm.weight", hidden))
    if config.own_embedding and config.decoder is not None:
        items.append(one(EMBEDDING, _EMBEDDING, config.decoder.vocab_size, hidden))
    return [*items, one(HEAD, "lm_head.weight", config.vocabulary_size, hidden)]


def _token_ids(files: TensorFiles, config: DrafterConfig, target: Checkpoint) -> torch.Tensor | None:
    """The target's ids of the drafted tokens, checked; None where all can be drafted."""
    count, path = config.vocabulary_size, files.path
    whole = config.decoder is not None and count >= config.decoder.vocab_size
    if whole:
        return None
    if _OFFSETS not in files.tensors:
        raise CheckpointError(
            f"--draft {path}: it drafts {count} of the target's {target.config.vocab_size} ids, and {_OFFSETS}, which "
            "says which, is missing; copy the drafter again"
        )
    offsets = files.read(_OFFSETS).long()
    if tuple(offsets.shape) != (count,):
        raise CheckpointError(f"--draft {path}: {_OFFSETS} has shape {list(offsets.shape)}; it must be [{count}]")
    ids = offsets + torch.arange(count)
    check_token_ids(path, ids, target.config.vocab_size, _OFFSETS)
    _check_filled(ids, offsets, files)
    return ids


def _check_filled(ids: torch.Tensor, offsets: torch.Tensor, files: TensorFiles) -> None:
    marked = _marked(files)
    if marked is not None and marked != ids.tolist():
        raise CheckpointError(
            f"--draft {files.path}: {_OFFSETS} and {_MARKS} name different ids ({len(ids)} and {len(marked)}); "
            "copy the drafter again"
        )
    if marked is None and not bool(offsets.any()):
        raise CheckpointError(
            f"--draft {files.path}: {_OFFSETS} holds only zeros, as if never filled in; copy the drafter again"
        )


def _marked(files: TensorFiles) -> Sequence[int] | None:
    if _MARKS not in files.tensors:
        return None
    marked: list[int] = files.read(_MARKS).bool().nonzero().flatten().tolist()
    return marked
