"""Our own folder of a drafter, as training writes it: shape, weights under their stored names, card.

`drafter.json` and `drafter.safetensors` are those of an engine folder. Weights are float32, bfloat16, or int8
matrices with their scales. `proposer.json` is written last: without it, a folder is not finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from builders.checkpoint import Checkpoint
from builders.drafts import card as cards
from builders.drafts.card import Card, read_card, write_card
from builders.drafts.eagle_layers import check_vocabulary, check_width
from builders.drafts.layout import drafter_shapes, optional_shapes
from builders.drafts.shape_file import read_shape
from builders.drafts.source import DraftSource, OpenedDraft, check_items, check_token_ids, one
from builders.layout import Shape
from builders.safetensors_file import read_header
from builders.tensor_files import TensorFiles, open_tensors
from trtspec.errors import CheckpointError
from trtspec.executors.embedded import drafter_config, drafter_weights
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter_config import FEATURES, DrafterConfig
from trtspec.executors.embedded.weights import SCALES, Int8Weight

_INT8 = "I8"


def write(directory: Path, config: DrafterConfig, tensors: Mapping[str, Tensor], card: Card) -> None:
    """Write a drafter that `--draft` reads; the tensors are stored as they are."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    (directory / cards.NAME).unlink(missing_ok=True)
    config.to_json(directory / drafter_config.NAME)
    save_file(dict(tensors), directory / drafter_weights.NAME)
    write_card(card, directory)


def holds(path: Path) -> bool:
    """Whether a folder is one of ours; an engine has a drafter, too, but no card of it."""
    return (path / drafter_config.NAME).is_file() and (path / cards.NAME).is_file()


def open_native(path: Path) -> OpenedDraft:
    """Read the card."""
    return OpenedDraft(path, "native", read_card(path), partial(_source, path))


def _source(path: Path, target: Checkpoint) -> DraftSource:
    where = path / drafter_weights.NAME
    if not where.is_file():
        raise CheckpointError(f"--draft {path}: {drafter_weights.NAME} is missing; copy or train the drafter again")
    header = read_header(where)
    shape = _shape(path, target, len(header))
    if drafter_weights.TOKEN_IDS not in header:
        check_vocabulary(path, shape.config.vocabulary_size, target.config, "vocabulary_size")
    scaled = {name for name, info in header.items() if info.dtype == _INT8 and name + SCALES in header}
    files = open_tensors(path, drafter_weights.NAME, integers={*scaled, drafter_weights.TOKEN_IDS})
    wanted = dict(shape.needed) | {name: size for name, size in shape.optional.items() if name in header}
    items = tuple(one(name, name, *size) for name, size in wanted.items())
    check_items(items, files.tensors, path, spare={name + SCALES for name in scaled})
    ids = _token_ids(files, target)
    return DraftSource(
        path=path,
        config=shape.config,
        items=tuple(item for item in items if item.name != drafter_weights.TOKEN_IDS),
        read=partial(_read, files, frozenset(scaled)),
        token_ids=ids,
        is_int8=all(item.name in scaled for item in items if item.is_matrix),
    )


def _token_ids(files: TensorFiles, target: Checkpoint) -> Tensor | None:
    if drafter_weights.TOKEN_IDS not in files.tensors:
        return None
    ids = files.read(drafter_weights.TOKEN_IDS).long()
    check_token_ids(files.path, ids, target.config.vocab_size, drafter_weights.TOKEN_IDS)
    return ids


@dataclass(frozen=True, slots=True)
class _DrafterShape:
    config: DrafterConfig
    needed: Mapping[str, Shape]
    optional: Mapping[str, Shape]


def _shape(path: Path, target: Checkpoint, tensors: int) -> _DrafterShape:
    config = read_shape(path / drafter_config.NAME, tensors)
    _check_fits(path, config, target.config)
    return _DrafterShape(config, drafter_shapes(config, target.config), optional_shapes(config))


def _check_fits(path: Path, config: DrafterConfig, target: DecoderConfig) -> None:
    """What reads the target's states or shares its tables is as wide as it; an own embedding has its rows."""
    if config.decoder is None:
        return
    if config.kind == FEATURES or not (config.own_embedding and config.own_head):
        check_width(path, config.decoder, target)
    if config.own_embedding:
        check_vocabulary(path, config.decoder.vocab_size, target)


def _read(files: TensorFiles, scaled: frozenset[str], name: str) -> Tensor:
    if name not in scaled:
        return files.read(name)
    scales = files.read(name + SCALES)
    return Int8Weight(files.read(name), scales).dense(scales.dtype)
