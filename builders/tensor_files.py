"""The weight files of a folder: which tensors there are, in which file each is, and reading them one by one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builders.model_config import read_json
from builders.safetensors_file import TensorInfo, read_header
from trtspec.errors import CheckpointError

if TYPE_CHECKING:
    import torch

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
READABLE_DTYPES = ("F32", "BF16", "F16", "F64")
_PICKLES = ("*.bin", "*.pt", "*.pth")
_USUAL_PICKLES = ("pytorch_model", "consolidated")


@dataclass(frozen=True, slots=True)
class TensorFiles:
    """The tensors of a folder whose headers have been read."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    files: Mapping[str, Path]
    """Where each tensor is."""

    def read(self, name: str) -> torch.Tensor:
        """One tensor, as it is stored."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.files[name], framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{self.files[name]}: cannot read tensor {name} ({error}); copy it again") from error
        return tensor


def open_tensors(path: Path, single: str = SINGLE, integers: Collection[str] = ()) -> TensorFiles:
    """Read the headers of a folder's one weight file, or of its shards; the tensors `integers` need not be floats."""
    tensors: dict[str, TensorInfo] = {}
    files: dict[str, Path] = {}
    for file, header in _headers(path, single).items():
        if again := next((name for name in header if name in files), None):
            raise CheckpointError(f"{path}: tensor {again} is both in {files[again].name} and in {file.name}; keep one")
        tensors |= header
        files |= dict.fromkeys(header, file)
    for name, info in tensors.items():
        if info.dtype not in READABLE_DTYPES and name not in integers:
            raise CheckpointError(
                f"{files[name]}: tensor {name} is stored as {info.dtype}; supported are {', '.join(READABLE_DTYPES)}"
            )
    return TensorFiles(path, tensors, files)


def tensor_names(path: Path) -> frozenset[str]:
    """The names of all tensors of a folder, whatever their types."""
    return frozenset(name for header in _headers(path, SINGLE).values() for name in header)


def _headers(path: Path, single: str) -> dict[Path, dict[str, TensorInfo]]:
    """The headers of all files with weights."""
    if (path / single).is_file():
        return {path / single: read_header(path / single)}
    if not (path / INDEX).is_file():
        if pickles := _pickles(path, single):
            raise CheckpointError(
                f"{path} holds its weights as pickle ({pickles[0].name}), which can run code when read; convert them "
                f"first: {_conversion(pickles, path / single)}"
            )
        raise CheckpointError(f"{path} has neither {single} nor {INDEX}")
    return _shard_headers(path)


def _pickles(path: Path, single: str) -> list[Path]:
    """The files that hold weights: those with the usual names, else one that may."""
    found = sorted(file for pattern in _PICKLES for file in path.glob(pattern))
    usual = [file for file in found if file.name.startswith((Path(single).stem, *_USUAL_PICKLES))]
    return usual or found[:1]


def _conversion(pickles: Sequence[Path], output: Path) -> str:
    """A command line that converts them without running any code of theirs."""
    names = ", ".join(json.dumps(str(file), ensure_ascii=False) for file in pickles)
    code = (
        "import torch; from safetensors.torch import save_file; "
        f"save_file({{k: v.clone().contiguous() for f in [{names}] for k, v in "
        'torch.load(f, weights_only=True, map_location="cpu").items()}, '
        f"{json.dumps(str(output), ensure_ascii=False)})"
    )
    return f"python -c {shlex.quote(code)}"


def _shard_headers(path: Path) -> dict[Path, dict[str, TensorInfo]]:
    """The headers of the shards that an index names, each with all that the index says of it."""
    places = read_json(path / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(shard, str) for shard in places.values()):
        raise CheckpointError(f"{path / INDEX} is damaged: it has no weight_map; copy it again")
    shards = sorted(set(places.values()))
    present = {file.name for file in path.iterdir() if file.is_file()}
    for shard in shards:
        if shard not in present:
            raise CheckpointError(f"{path / INDEX} names {shard[:256]}, which is not in the folder; copy it again")
    headers = {shard: read_header(path / shard) for shard in shards}
    for name, shard in places.items():
        if name not in headers[shard]:
            raise CheckpointError(
                f"{path / INDEX} says that tensor {name} is in {shard}, which lacks it; copy both again"
            )
    return {path / shard: header for shard, header in headers.items()}
