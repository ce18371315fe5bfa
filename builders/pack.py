"""The weights stage: one weight at a time from the checkpoint into `weights.safetensors`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

from builders.layout import Packed, Stored, layout, stored_as
from builders.progress import progress_bars
from builders.recipe import Plan
from builders.safetensors_file import LENGTH
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.weights import DTYPES, NAME

_WORDS: Mapping[torch.dtype, str] = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int8: "I8"}
_ALIGNMENT = 64
"""A cache line, for the first tensor: a reader maps the file, and computes with the tensors in place."""
_INT8_LARGEST = 127


def pack_weights(plan: Plan, directory: Path) -> None:
    """Read, convert and write every weight; at most one is in memory."""
    items = layout(plan.checkpoint.config)
    dtype, quantization = DTYPES[plan.dtype.value], plan.recipe.quantization
    entries = [entry for item in items for entry in stored_as(item, dtype, quantization)]
    with progress_bars() as bars:
        tensors = (tensor for item in bars.track(items, description="weights") for tensor in _stored(plan, item))
        write_safetensors(directory / NAME, entries, tensors)


def _stored(plan: Plan, item: Packed) -> Iterator[torch.Tensor]:
    whole = torch.cat([plan.checkpoint.read(name) for name in item.sources])
    whole = whole.to(DTYPES[plan.dtype.value])
    if not bool(torch.isfinite(whole).all()):
        names = " or ".join(item.sources)
        raise CheckpointError(f"{plan.checkpoint.path}: tensor {names} is not finite as {plan.dtype.value}")
    yield from quantize_int8(whole) if plan.recipe.quantization == "int8" and item.is_matrix else (whole,)


def quantize_int8(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row to 255 levels, symmetric about zero, the largest magnitude on the last: integers and scales."""
    values = matrix.float()
    scales = values.abs().amax(dim=1) / _INT8_LARGEST
    steps = values / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)  # a row of zeros has scale 0
    return steps.round().clamp(-_INT8_LARGEST, _INT8_LARGEST).to(torch.int8), scales


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
