"""Medusa-1 heads as FasterDecoding/Medusa stores them.

`config.json` has `medusa_num_heads`, `medusa_num_layers` and `base_model_name_or_path`; `medusa_lm_head.safetensors`
has the heads' own names, head K's residual block B being `K.B.linear` and its output `K.L.weight` after L blocks
(`medusa_model.py`, `train_legacy.py`). Medusa-2 trains the base together with the heads: such a folder holds a whole
model, with the heads under `medusa_head.`, and is its own target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from builders.checkpoint import EMBEDDING, MEDUSA_PREFIX, Checkpoint
from builders.drafts.card import Card
from builders.drafts.source import DraftSource, OpenedDraft, check_depth, check_items, one
from builders.layout import Packed
from builders.model_config import read_json, size
from builders.tensor_files import INDEX, SINGLE, TensorFiles, open_tensors
from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.drafter_config import HEADS, DrafterConfig
from trtspec.executors.embedded.drafter_weights import block_name, head_name
from trtspec.types import Method

FILE = "medusa_lm_head.safetensors"
HEADS_KEY = "medusa_num_heads"
_BLOCKS_KEY = "medusa_num_layers"


def open_medusa(path: Path, raw: Mapping[str, Any]) -> OpenedDraft:
    """Read the card out of the config."""
    heads = size(raw, HEADS_KEY, path / "config.json")
    check_depth(heads, HEADS_KEY, path / "config.json")
    name = raw.get("base_model_name_or_path")
    card = Card(
        Method.MEDUSA,
        target_name=name if isinstance(name, str) else None,
        speculative={"num_speculative_tokens": heads},
    )
    return OpenedDraft(path, "medusa", card, partial(_source, path))


def _source(path: Path, target: Checkpoint) -> DraftSource:
    raw, where = read_json(path / "config.json"), path / "config.json"
    files = _files(path, target)
    prefix = "" if (path / FILE).is_file() else MEDUSA_PREFIX
    config = DrafterConfig(
        kind=HEADS,
        decoder=None,
        features=(LAST_HIDDEN,),
        vocabulary_size=target.config.vocab_size,
        own_embedding=False,
        own_head=True,
        modules=size(raw, HEADS_KEY, where),
        blocks=size(raw, _BLOCKS_KEY, where, 1),
    )
    _check_counts(config, files, where)
    items = tuple(_items(config, prefix, target.config.hidden_size, files))
    spare = {name for name in files.tensors if not name.startswith(prefix)}
    check_items(items, files.tensors, path, spare)
    return DraftSource(path, config, items, files.read, beside_target=path.resolve() == target.path.resolve())


def _check_counts(config: DrafterConfig, files: TensorFiles, where: Path) -> None:
    """Before all tensors are listed: a damaged count may be in the millions."""
    for key, count in ((HEADS_KEY, config.modules), (_BLOCKS_KEY, config.blocks)):
        if count > len(files.tensors):
            raise CheckpointError(
                f"{where}: {key} is {count} and there are {len(files.tensors)} tensors; copy it again"
            )


def _files(path: Path, target: Checkpoint) -> TensorFiles:
    whole = any((path / name).is_file() for name in (SINGLE, INDEX))
    if (path / FILE).is_file() or not whole:
        return open_tensors(path, FILE)
    files = open_tensors(path)
    if EMBEDDING in files.tensors and path.resolve() != target.path.resolve():
        raise CheckpointError(
            f"--draft {path} holds a whole model beside its heads (Medusa-2): they were trained together, and the "
            f"model is its own target, not {target.path}; give {path} as --target and as --draft"
        )
    return files


def _items(config: DrafterConfig, prefix: str, hidden: int, files: TensorFiles) -> Iterator[Packed]:
    for head in range(config.modules):
        for block in range(config.blocks):
            source = f"{prefix}{head}.{block}.linear"
            yield one(block_name(head, block, "weight"), f"{source}.weight", hidden, hidden)
            yield one(block_name(head, block, "bias"), f"{source}.bias", hidden)
        output = f"{prefix}{head}.{config.blocks}.weight"
        rows = files.tensors[output].shape[0] if output in files.tensors else config.vocabulary_size
        yield one(head_name(head), output, rows, hidden)
