"""Headers of safetensors files: what a checkpoint holds, known before its data is read.

The format: eight bytes with the header's length, a JSON header, then the tensors' bytes, one tensor after the other.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from trtspec.errors import CheckpointError

LENGTH = struct.Struct("<Q")
_LONGEST_HEADER = 100_000_000
"""The format's own limit; a larger number means that the file is something else."""
_BITS: Mapping[str, int] = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits of a value, of every type that the format has."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a header says of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    """The file format's own word, such as BF16 or Q4_1."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor and its place in the data."""

    name: str
    info: TensorInfo
    begin: int
    end: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a file, after checking that each is as long as it should be and that all their bytes are there."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header, start = _read_json(file, size, path)
    entries = [_entry(name, item, path) for name, item in header.items() if name != "__metadata__"]
    needed = start + _check_order(entries, path)
    _check_size(path, size, needed)
    if size > needed:
        raise CheckpointError(f"{path} has {size} bytes and its header describes {needed}; copy it again")
    return {entry.name: entry.info for entry in entries}


def _read_json(file: BinaryIO, size: int, path: Path) -> tuple[dict[str, Any], int]:
    """The header, and where the data starts."""
    first = file.read(LENGTH.size)
    length = LENGTH.unpack(first)[0] if len(first) == LENGTH.size else 0
    if not 2 <= length <= _LONGEST_HEADER:
        raise CheckpointError(f"{path} is no safetensors file: its first 8 bytes give a header of {length} bytes")
    _check_size(path, size, LENGTH.size + length)
    try:
        header = json.loads(file.read(length).decode())
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(header, dict):
        raise _damaged(path, f"it holds {type(header).__name__} and no object")
    return header, LENGTH.size + length


def _entry(name: str, item: object, path: Path) -> _Entry:
    """One tensor of the header, if its parts agree with each other."""
    if not isinstance(item, dict):
        raise _damaged(path, f"tensor {name} is {item!r:.80}")
    dtype, shape, offsets = item.get("dtype"), item.get("shape"), item.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _damaged(path, f"tensor {name} has the unknown type {dtype!r:.80}")
    if not _are_sizes(shape):
        raise _damaged(path, f"tensor {name} has shape {shape!r:.80}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(path, f"tensor {name} has data_offsets {offsets!r:.80}")
    begin, end = offsets
    bits = math.prod(shape) * _BITS[dtype]
    if bits != 8 * (end - begin):
        raise _damaged(
            path, f"tensor {name} has {end - begin} bytes, and {dtype} of shape {shape!r:.80} needs {bits / 8:g}"
        )
    return _Entry(name, TensorInfo(tuple(shape), dtype), begin, end)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_order(entries: list[_Entry], path: Path) -> int:
    """Refuse overlaps and holes; returns the length of the data."""
    last, end = "the header", 0
    for entry in sorted(entries, key=lambda item: (item.begin, item.end)):
        if entry.begin != end:
            raise _damaged(path, f"tensor {entry.name} begins at {entry.begin}, and {last} ends at {end}")
        last, end = f"tensor {entry.name}", entry.end
    return end


def _check_size(path: Path, found: int, needed: int) -> None:
    if found < needed:
        raise CheckpointError(f"{path} is truncated: it has {found} bytes and needs {needed}; copy it again")


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path}: the safetensors header is damaged ({reason}); copy it again")
