"""Runs verification engines on PyTorch's tensors, on PyTorch's current stream of the device that they were opened on.

It opens what `builders.verifier` built, and nothing else: the folder's record says what each engine takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugins import trt_log, verifier_folder
from plugins.contract import Array
from plugins.launch import on_gpu_of
from plugins.verifier_folder import REBUILD, EngineFile, VerifierRecord
from plugins.verifier_inputs import Inputs
from trtspec.errors import EngineFolderError, KernelError
from trtspec.manifest import hash_file


@dataclass(frozen=True, slots=True)
class Verifier:
    """The engines of a folder, by name."""

    record: VerifierRecord
    engines: Mapping[str, VerificationEngine]

    def run(self, engine: str, /, **inputs: Tensor) -> dict[str, Tensor]:
        """What an engine gives for these inputs, all by name."""
        if engine not in self.engines:
            raise KernelError(f"there is no engine {engine}; this folder has {', '.join(self.engines)}")
        return self.engines[engine].run(inputs)


def open_verifier(folder: Path, device: torch.device | str = "cuda") -> Verifier:
    """All engines of a folder, with their contexts on a device."""
    record = verifier_folder.read(folder)
    if record.compiler not in verifier_folder.MODULES:
        known = " or ".join(verifier_folder.MODULES)
        raise EngineFolderError(
            f"{folder} was made with --compiler {record.compiler}, whose files are no engines; {REBUILD} and {known}"
        )
    trt = verifier_folder.import_first(record.compiler)
    place = _resolved(torch.device(device))
    with on_gpu_of(place):  # an engine belongs to the GPU that it is loaded on
        engines = {
            name: VerificationEngine(_read(folder, item), item, record, trt, place)
            for name, item in record.engines.items()
        }
    return Verifier(record, engines)


class VerificationEngine:
    """One engine and its context, for one thread at a time."""

    def __init__(self, plan: bytes, file: EngineFile, record: VerifierRecord, trt: Any, device: torch.device) -> None:
        self._file = file
        self._device = device
        self._inputs = Inputs(file.file, file.inputs, record.dimensions, device)
        self._log = trt_log.logger(trt, trt.Logger(trt.Logger.WARNING).log)
        self._runtime = trt_log.create(trt, "Runtime", self._log, "engines run on a GPU, with its driver")
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise EngineFolderError(_not_for_this(file, record, trt))
        self._check_names(trt)
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise KernelError(f"{file.file}: TensorRT made no context, which takes device memory; its log says why")

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Queue it on the current stream of its device. Each output is a new tensor."""
        self._inputs.check(inputs)
        with on_gpu_of(self._device):
            return self._queue(inputs)

    def _queue(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
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

    def _require(self, taken: bool, name: str, tensor: Tensor) -> None:
        if not taken:
            raise KernelError(f"{self._file.file}: TensorRT refused {name}, {list(tensor.shape)}; its log says why")

    def _check_names(self, trt: Any) -> None:
        """That the file is the engine which its record describes."""
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        taken = {name for name in names if self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT}
        inputs, outputs = ({item.name for item in items} for items in (self._file.inputs, self._file.outputs))
        if taken != inputs or set(names) - taken != outputs:
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


def _not_for_this(file: EngineFile, record: VerifierRecord, trt: Any) -> str:
    chips = ", ".join(f"sm_{item}" for item in record.architectures) or record.gpu or "another GPU"
    return (
        f"{file.file}: {trt.__name__} {trt.__version__} cannot load it here; it was built with {record.compiler} "
        f"{record.compiler_version} for {chips}. Its log says why; {REBUILD}"
    )
