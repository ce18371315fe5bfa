"""Headers of safetensors files: what a checkpoint holds, known before its data is read.

The format: eight bytes with the header's length, a JSON header, then the tensors' bytes.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import CheckpointError

LENGTH = struct.Struct("<Q")
_LONGEST_HEADER = 100_000_000
"""The format's own limit; a larger number means that the file is something else."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a header says of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    """The file format's own word, such as BF16 or Q4_1."""


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a file, after checking that all their bytes are there."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(LENGTH.size)
        length = LENGTH.unpack(start)[0] if len(start) == LENGTH.size else 0
        if not 2 <= length <= _LONGEST_HEADER:
            raise CheckpointError(f"{path} is no safetensors file: its first 8 bytes give a header of {length} bytes")
        _check_size(path, size, LENGTH.size + length)
        try:
            header = json.loads(file.read(length))
            entries = {name: item for name, item in header.items() if name != "__metadata__"}
            needed = max((item["data_offsets"][1] for item in entries.values()), default=0)
            tensors = {name: TensorInfo(tuple(item["shape"]), item["dtype"]) for name, item in entries.items()}
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise CheckpointError(f"{path}: the safetensors header is damaged ({error}); copy it again") from error
    _check_size(path, size, LENGTH.size + length + needed)
    return tensors


def _check_size(path: Path, found: int, needed: int) -> None:
    if found < needed:
        raise CheckpointError(f"{path} is truncated: it has {found} bytes and needs {needed}; copy it again")
