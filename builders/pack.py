"""The weights stage: one tensor at a time from the checkpoint into `weights.safetensors`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from builders.checkpoint import expected_shapes
from builders.progress import progress_bars
from builders.recipe import Plan
from builders.safetensors_file import LENGTH
from trtspec.errors import CheckpointError

NAME = "weights.safetensors"
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_WORDS: Mapping[torch.dtype, str] = {torch.float32: "F32", torch.bfloat16: "BF16"}
_ALIGNMENT = 8
"""The format's: a reader maps the tensors in place."""


def pack_weights(plan: Plan, directory: Path) -> None:
    """Read, convert and write every tensor; at most one is in memory."""
    shapes = expected_shapes(plan.checkpoint.config)
    dtype = DTYPES[plan.dtype.value]
    with progress_bars() as bars:
        names = bars.track(shapes, description="weights")
        write_safetensors(directory / NAME, shapes, dtype, ((name, _read(plan, name, dtype)) for name in names))


def _read(plan: Plan, name: str, dtype: torch.dtype) -> torch.Tensor:
    tensor = plan.checkpoint.read(name).to(dtype)
    if not bool(torch.isfinite(tensor).all()):
        raise CheckpointError(f"{plan.checkpoint.path}: tensor {name} is not finite as {plan.dtype.value}")
    return tensor


def write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    """Write tensors of one dtype as they come, in the order of `shapes`, and sync them to disk."""
    with path.open("wb") as file:
        file.write(_header(shapes, dtype))
        for (name, tensor), (expected, shape) in zip(tensors, shapes.items(), strict=True):
            if name != expected or tuple(tensor.shape) != shape or tensor.dtype != dtype:
                raise ValueError(f"{name} {tuple(tensor.shape)} {tensor.dtype} came for {expected} {shape} {dtype}")
            file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def _header(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + torch.Size(shape).numel() * dtype.itemsize
        header[name] = {"dtype": _WORDS[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return LENGTH.pack(len(text)) + text
