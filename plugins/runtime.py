"""Runs verification engines on PyTorch's tensors: checks what they are given, and queues them on the current stream.

An engine cannot see that two arrays disagree, and would read and write elsewhere; so shapes are compared here, by the
names that the folder's record gives to dimensions. What `builders.verifier` builds is the only thing that is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugins import verifier_folder
from plugins.contract import Array
from plugins.verifier_folder import REBUILD, EngineFile, VerifierRecord
from trtspec.errors import EngineFolderError, KernelError
from trtspec.manifest import hash_file

FLAGS = {"rows": "--rows", "nodes": "--nodes", "places": "--nodes", "width": "--width"}
"""Of the builder, by the dimension whose sizes they set."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """The engines of a folder, by name."""

    record: VerifierRecord
    engines: Mapping[str, VerificationEngine]

    def run(self, name: str, **inputs: Tensor) -> dict[str, Tensor]:
        """What an engine gives for these inputs, all by name."""
        if name not in self.engines:
            raise KernelError(f"there is no engine {name}; this folder has {', '.join(self.engines)}")
        return self.engines[name].run(inputs)


def open_verifier(folder: Path, device: torch.device | str = "cuda") -> Verifier:
    """All engines of a folder, with their contexts on a device."""
    record = verifier_folder.read(folder)
    if record.compiler not in verifier_folder.MODULES:
        known = ", ".join(verifier_folder.MODULES)
        raise EngineFolderError(
            f"{folder} was made with --compiler {record.compiler}, whose files are no engines; {REBUILD} and one of {known}"
        )
    trt = verifier_folder.import_first(record.compiler)
    place = _resolved(torch.device(device))
    opened = {
        name: VerificationEngine(_read(folder, item), item, record, trt, place) for name, item in record.engines.items()
    }
    return Verifier(record, opened)


class VerificationEngine:
    """One engine and its context; used by one thread at a time."""

    def __init__(self, plan: bytes, file: EngineFile, record: VerifierRecord, trt: Any, device: torch.device) -> None:
        self._file = file
        self._record = record
        self._device = device
        self._log = trt.Logger(trt.Logger.WARNING)
        self._runtime = trt.Runtime(self._log)
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise EngineFolderError(_not_for_this(file, record, trt))
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise KernelError(
                f"{file.file}: TensorRT made no context for it, which takes device memory; its log says why"
            )
        self._check_names(trt)

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Queue it on the current stream of its device. Each output is a new tensor."""
        self._check(inputs)
        for name, tensor in inputs.items():
            self._require(self._context.set_input_shape(name, tuple(tensor.shape)), name, tensor)
            self._require(self._context.set_tensor_address(name, tensor.data_ptr()), name, tensor)
        if unknown := self._context.infer_shapes():
            raise KernelError(f"{self._file.file}: TensorRT knows no shape of {', '.join(unknown)}")
        outputs = {item.name: self._output(item) for item in self._file.outputs}
        if not self._context.execute_async_v3(current_stream(self._device)):
            raise KernelError(f"{self._file.file}: TensorRT could not queue it; its log says why")
        return outputs

    def _output(self, item: Array) -> Tensor:
        shape = tuple(self._context.get_tensor_shape(item.name))
        tensor = torch.empty(shape, dtype=getattr(torch, item.dtype), device=self._device)
        self._require(self._context.set_tensor_address(item.name, tensor.data_ptr()), item.name, tensor)
        return tensor

    def _check(self, inputs: Mapping[str, Tensor]) -> None:
        wanted = [item.name for item in self._file.inputs]
        if set(inputs) != set(wanted):
            raise KernelError(f"{self._file.file} takes {', '.join(wanted)}; given are {', '.join(inputs) or 'none'}")
        sizes: dict[str, tuple[int, str]] = {}
        for item in self._file.inputs:
            self._check_tensor(item, inputs[item.name])
            self._check_sizes(item, inputs[item.name], sizes)
        (nodes, drafted), (places, over) = sizes["nodes"], sizes["places"]
        if places != nodes + 1:
            raise KernelError(
                f"{self._told(over, inputs)} and {self._told(drafted, inputs)}: {places} places a row, and {nodes} nodes; "
                "wanted is one place more, the root's"
            )

    def _check_tensor(self, item: Array, tensor: Tensor) -> None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tensor.device != self._device:
            raise KernelError(f"{item.name} is on {tensor.device}, and the engine on {self._device}; move it there")
        if dtype != item.dtype:
            raise KernelError(f"{item.name} is {dtype}, and the engine takes {item.dtype}; cast it")
        if tensor.ndim != len(item.shape):
            raise KernelError(
                f"{item.name} is {list(tensor.shape)}, and the engine takes [{', '.join(map(str, item.shape))}]"
            )
        if not tensor.is_contiguous():
            raise KernelError(f"{item.name} is strided, and engines read row by row; give .contiguous()")

    def _check_sizes(self, item: Array, tensor: Tensor, sizes: dict[str, tuple[int, str]]) -> None:
        for name, size in zip(map(str, item.shape), tensor.shape, strict=True):
            least, _, most = self._record.dimensions[name]
            if not least <= size <= most:
                takes = [_span(self._record.dimensions[str(each)]) for each in item.shape]
                raise KernelError(
                    f"{item.name} is {list(tensor.shape)}, and the engine takes [{', '.join(takes)}]: {size} {name}; "
                    f"split it or pad it, or build an engine with another {FLAGS[name]}"
                )
            known, of = sizes.setdefault(name, (size, item.name))
            if size != known:
                raise KernelError(
                    f"{item.name} is {list(tensor.shape)} and has {size} {name}, and {of} has {known}; they must be equal"
                )

    def _told(self, name: str, inputs: Mapping[str, Tensor]) -> str:
        return f"{name} is {list(inputs[name].shape)}"

    def _require(self, taken: bool, name: str, tensor: Tensor) -> None:
        if not taken:
            raise KernelError(f"{self._file.file}: TensorRT refused {name}, {list(tensor.shape)}; its log says why")

    def _check_names(self, trt: Any) -> None:
        """That the file is the engine that its record describes."""
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        found = {name for name in names if self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT}
        inputs, outputs = ({item.name for item in items} for items in (self._file.inputs, self._file.outputs))
        if found != inputs or set(names) - found != outputs:
            raise EngineFolderError(
                f"{self._file.file} takes and gives {', '.join(names)}, and its record says otherwise; {REBUILD}"
            )


def current_stream(device: torch.device) -> int:
    """PyTorch's, as TensorRT takes it."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def _resolved(device: torch.device) -> torch.device:
    """With its index, as tensors tell it."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _read(folder: Path, item: EngineFile) -> bytes:
    path = folder / item.file
    if not path.is_file() or hash_file(path).sha256 != item.sha256:
        raise EngineFolderError(f"{path} is not the file that was built; {REBUILD}")
    return path.read_bytes()


def _span(sizes: tuple[int, int, int]) -> str:
    return str(sizes[0]) if sizes[0] == sizes[2] else f"{sizes[0]} to {sizes[2]}"


def _not_for_this(file: EngineFile, record: VerifierRecord, trt: Any) -> str:
    chips = ", ".join(f"sm_{item}" for item in record.architectures) or record.gpu or "another GPU"
    return (
        f"{file.file}: {trt.__name__} {trt.__version__} cannot load it; it was built with {record.compiler} "
        f"{record.compiler_version} for {chips}. Its log says why; {REBUILD}"
    )
