"""`drafter.json` of a folder that somebody gave us: every value has its type and its range before any is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from builders.model_config import number, read_json, size
from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.decoder_config import DecoderConfig, Llama3RopeScaling
from trtspec.executors.embedded.drafter_config import FEATURES, FUSED_FEATURES, HEADS, TOKENS, DrafterConfig

_KINDS = (TOKENS, FEATURES, FUSED_FEATURES, HEADS)


def read_shape(where: Path, tensors: int) -> DrafterConfig:
    """Read the file of a folder that has so many tensors: no count in it can be larger."""
    raw = read_json(where)
    _check_keys(DrafterConfig, raw, where)
    if raw["kind"] not in _KINDS:
        raise _wrong(where, "kind", raw["kind"], f"one of {', '.join(_KINDS)}")
    _check_flags(DrafterConfig, raw, where)
    _check_features(raw["features"], where)
    vocabulary = raw["vocabulary_size"]
    if type(vocabulary) is not int or vocabulary < 0:
        raise _wrong(where, "vocabulary_size", vocabulary, "a whole number of 0 or more")
    _check_counts(raw, ("modules", "blocks"), tensors, where)
    decoder = raw["decoder"]
    if (decoder is None) != (raw["kind"] == HEADS):
        raise _wrong(where, "decoder", decoder, f"an object for a drafter of kind {raw['kind']!r}; heads have null")
    if decoder is not None:
        _check_decoder(decoder, tensors, where)
    return DrafterConfig.from_dict(raw)


def _check_decoder(decoder: object, tensors: int, where: Path) -> None:
    if not isinstance(decoder, dict):
        raise _wrong(where, "decoder", decoder, "an object")
    _check_keys(DecoderConfig, decoder, where)
    _check_flags(DecoderConfig, decoder, where)
    _check_counts(decoder, ("num_layers",), tensors, where)
    for item in fields(DecoderConfig):
        if item.type == "int":
            size(decoder, item.name, where)
        elif item.type == "float":
            number(decoder, item.name, where)
    scaling = decoder["rope_scaling"]
    if scaling is not None:
        if not isinstance(scaling, dict):
            raise _wrong(where, "rope_scaling", scaling, "an object or null")
        _check_keys(Llama3RopeScaling, scaling, where)
        for name in scaling:
            number(scaling, name, where)


def _check_keys(kind: type[DrafterConfig | DecoderConfig | Llama3RopeScaling], raw: Iterable[str], where: Path) -> None:
    known = {item.name for item in fields(kind)}
    if known != set(raw):
        odd = ", ".join(sorted(known ^ set(raw)))
        raise CheckpointError(
            f"{where} is damaged (its keys differ from the known ones in {odd:.200}); copy or train the drafter again"
        )


def _check_flags(kind: type[DrafterConfig | DecoderConfig], raw: Mapping[str, Any], where: Path) -> None:
    for item in fields(kind):
        if item.type == "bool" and not isinstance(raw[item.name], bool):
            raise _wrong(where, item.name, raw[item.name], "true or false")


def _check_counts(raw: Mapping[str, Any], names: Iterable[str], tensors: int, where: Path) -> None:
    """Before anything is listed: a damaged count may be in the millions."""
    for name in names:
        if (count := size(raw, name, where)) > tensors:
            raise CheckpointError(f"{where}: {name} is {count} and the drafter has {tensors} tensors; copy it again")


def _check_features(value: object, where: Path) -> None:
    if not isinstance(value, list) or not all(type(item) is int and item >= LAST_HIDDEN for item in value):
        raise _wrong(where, "features", value, f"a list of layers, {LAST_HIDDEN} being the last state")


def _wrong(where: Path, name: str, value: object, wanted: str) -> CheckpointError:
    return CheckpointError(f"{where}: {name} is {value!r:.80}; it must be {wanted}")
