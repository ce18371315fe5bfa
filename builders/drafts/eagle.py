"""EAGLE and EAGLE-2 as SafeAILab/EAGLE stores them: EAGLE-2 is another way to use the same weights.

`config.json` is that of a Llama with one layer. `fc` fuses embedding and state, embedding first, with a bias or
without; `layers.0` is a decoder layer without `input_layernorm`; no norm comes after it. `embed_tokens` is a frozen
copy of the target's, and the target's output head is used (`cnets1.py`, `ea_model.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from builders.checkpoint import Checkpoint
from builders.drafts.card import Card
from builders.drafts.eagle_layers import USUAL, check_vocabulary, check_width, eagle_decoder
from builders.drafts.layout import module_layer_shapes
from builders.drafts.source import DraftSource, OpenedDraft, check_items, layer, one
from builders.tensor_files import open_tensors
from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.executors.embedded.drafter_config import FEATURES, DrafterConfig
from trtspec.executors.embedded.drafter_weights import module_name
from trtspec.executors.embedded.weights import layer_name
from trtspec.types import Method

FUSION = "fc.weight"
_SPARE = frozenset({"embed_tokens.weight", "lm_head.weight"})
"""Copies of the target's tensors."""


def open_eagle(path: Path, raw: Mapping[str, Any]) -> OpenedDraft:
    """The files tell no settings and no target."""
    return OpenedDraft(path, "eagle", Card(Method.EAGLE, speculative=USUAL), partial(eagle_source, path, raw))


def eagle_source(
    path: Path, raw: Mapping[str, Any], target: Checkpoint, fusion: str = "fc", prefix: str = "layers.0."
) -> DraftSource:
    """The drafter, whose fusion and layer have these names."""
    files = open_tensors(path)
    decoder = eagle_decoder(raw, path / "config.json", files.tensors, prefix)
    check_width(path, decoder, target.config)
    check_vocabulary(path, decoder.vocab_size, target.config)
    config = DrafterConfig(
        kind=FEATURES,
        decoder=decoder,
        features=(LAST_HIDDEN,),
        vocabulary_size=target.config.vocab_size,
        own_embedding=False,
        own_head=False,
        first_input_norm=False,
        final_norm=False,
    )
    items = [one(module_name(0, "fuse"), f"{fusion}.weight", decoder.hidden_size, 2 * decoder.hidden_size)]
    if f"{fusion}.bias" in files.tensors:
        items.append(one(module_name(0, "fuse_bias"), f"{fusion}.bias", decoder.hidden_size))
    items += layer(
        module_layer_shapes(config, 0),
        lambda part: prefix + part,
        lambda part: module_name(0, layer_name(0, part)),
    )
    check_items(items, files.tensors, path, _SPARE)
    return DraftSource(path, config, tuple(items), files.read)
