"""The weights stages: one weight at a time from a checkpoint or a drafter's folder into a file of the engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from builders.layout import Packed, Stored, stored_as
from builders.progress import progress_bars
from builders.safetensors_file import LENGTH
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.weights import DTYPES, Int8Weight

_WORDS: Mapping[torch.dtype, str] = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.int64: "I64",
}
_ALIGNMENT = 64
"""A cache line, for the first tensor: a reader maps the file, and computes with the tensors in place."""


@dataclass(frozen=True, slots=True)
class Form:
    """How an engine stores weights."""

    dtype: str
    quantization: str

    def entries(self, items: Iterable[Packed]) -> list[Stored]:
        """What a file of these weights holds."""
        dtype = DTYPES[self.dtype]
        return [entry for item in items for entry in stored_as(item, dtype, self.quantization)]

    def bytes(self, items: Iterable[Packed]) -> int:
        """Size of a file of these weights, without its header."""
        return sum(entry.bytes for entry in self.entries(items))


@dataclass(frozen=True, slots=True)
class Weights:
    """What is packed, and where it comes from."""

    path: Path
    items: Sequence[Packed]
    read: Callable[[str], torch.Tensor]
    """One of the tensors that the items are made of."""


def pack_weights(
    weights: Weights,
    form: Form,
    file: Path,
    description: str,
    seen: Callable[[str, torch.Tensor], None] | None = None,
) -> None:
    """Read, convert and write every weight; at most one is in memory. `seen` is shown each before it is converted."""
    with progress_bars() as bars:
        tracked = bars.track(weights.items, description=description)
        tensors = (tensor for item in tracked for tensor in _stored(weights, item, form, seen))
        write_safetensors(file, form.entries(weights.items), tensors)


def _stored(
    weights: Weights, item: Packed, form: Form, seen: Callable[[str, torch.Tensor], None] | None
) -> Iterator[torch.Tensor]:
    whole = torch.cat([weights.read(name) for name in item.sources])[: item.shape[0]]
    if item.integers:
        yield whole
        return
    if seen is not None:
        seen(item.name, whole)
    as_int8 = form.quantization == "int8" and item.is_matrix
    whole = whole.float() if as_int8 else whole.to(DTYPES[form.dtype])  # rounded once, so that integers stay themselves
    if not bool(torch.isfinite(whole).all()):
        names = " or ".join(item.sources)
        raise CheckpointError(f"{weights.path}: tensor {names} is not finite as {form.dtype}")
    if as_int8:
        packed = Int8Weight.of(whole)
        yield from (packed.values, packed.scales)
    else:
        yield whole


def write_safetensors(path: Path, entries: Iterable[Stored], tensors: Iterable[torch.Tensor]) -> None:
    """Write tensors as they come, each as its entry says, and sync them to disk."""
    entries = list(entries)
    with path.open("wb") as file:
        file.write(_header(entries))
        for entry, tensor in zip(entries, tensors, strict=True):
            if tuple(tensor.shape) != entry.shape or tensor.dtype != entry.dtype:
                raise ValueError(f"{tuple(tensor.shape)} {tensor.dtype} came for {entry}")
            file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def _header(entries: Iterable[Stored]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in entries:
        end = offset + entry.bytes
        header[entry.name] = {"dtype": _WORDS[entry.dtype], "shape": list(entry.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + LENGTH.size) % _ALIGNMENT)
    return LENGTH.pack(len(text)) + text
