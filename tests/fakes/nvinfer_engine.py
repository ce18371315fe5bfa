"""Builder, profile, runtime, engine and context over the network that remembers: TensorRT's other calls, without it.

What the documentation of these calls asks of their order and arguments is refused here; an engine runs on the memory
that it is given addresses of, which has to be the CPU's.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.fakes.nvinfer_network import Network
from tests.fakes.nvinfer_plugins import TORCH
from tests.fakes.signatures import WrongCall, check

_NUMBERS = itertools.count()
ALIGNED = 16
"""Bytes. Real addresses are multiples of more, and PyTorch's on the CPU are multiples of 64."""


@dataclass(frozen=True)
class Plan:
    """What a serialized engine stands for."""

    network: Network
    profile: dict[str, tuple[tuple[int, ...], ...]]
    flags: frozenset[str] = frozenset()


@contextmanager
def engines(trt: Any) -> Iterator[list[Plan]]:
    """`trt` builds and runs engines; what was built is in the list."""
    plans: list[Plan] = []
    known: dict[bytes, Plan] = {}
    builder, runtime = trt.Builder, trt.Runtime
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trt, "Builder", lambda log: Builder(trt, builder, log, plans, known))
        patch.setattr(trt, "Runtime", lambda log: Runtime(trt, runtime, log, known))
        yield plans


@contextmanager
def no_gpu(trt: Any, **said: str) -> Iterator[None]:
    """Builders and runtimes as they are without a driver: lines in the log, by severity, and NVIDIA's own error.

    TensorRT 8.6 has warned of it, and versions before it called it an error: issues 2913 and 308 of NVIDIA/TensorRT.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("Builder", "Runtime"):
            patch.setattr(trt, name, _Failing(trt, getattr(trt.tensorrt, name), said))
        yield


@dataclass(frozen=True)
class _Failing:
    """The real class over libraries that make nothing."""

    trt: Any
    real: Any
    said: dict[str, str]

    def __call__(self, log: Any) -> Any:
        for severity, line in self.said.items():
            log.log(getattr(self.trt.ILogger.Severity, severity), line)
        return self.real(log)


class Profile:
    """An `IOptimizationProfile`."""

    def __init__(self, trt: Any) -> None:
        self._trt = trt
        self.shapes: dict[str, tuple[tuple[int, ...], ...]] = {}

    def set_shape(self, name: str, least: Sequence[int], usual: Sequence[int], most: Sequence[int]) -> None:
        check(self._trt, self._trt.IOptimizationProfile.set_shape, (name, least, usual, most))
        if not all(0 <= a <= b <= c for a, b, c in zip(least, usual, most, strict=True)):
            raise ValueError(f"{name}: {least}, {usual}, {most}")
        self.shapes[name] = (tuple(least), tuple(usual), tuple(most))


class Config:
    """An `IBuilderConfig`; without compute capabilities, which TensorRT 10 does not have."""

    def __init__(self, trt: Any) -> None:
        self._trt = trt
        self.set: set[str] = set()
        self.profiles: list[Profile] = []

    def set_flag(self, flag: Any) -> None:
        check(self._trt, self._trt.IBuilderConfig.set_flag, (flag,))
        self.set.add(flag.name)

    def add_optimization_profile(self, profile: Any) -> int:
        check(self._trt, self._trt.IBuilderConfig.add_optimization_profile, (profile,), [Profile])
        self.profiles.append(profile)
        return len(self.profiles) - 1


class Builder:
    def __init__(self, trt: Any, real: Any, log: Any, plans: list[Plan], known: dict[bytes, Plan]) -> None:
        check(trt, real.__init__, (log,))
        self._trt, self._real, self._log, self._plans, self._known = trt, real, log, plans, known

    def create_network(self, flags: int) -> Network:
        if flags != 1 << int(self._trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED):
            raise WrongCall(f"this double is strongly typed, and flags are {flags:b}")
        return Network(self._trt)

    def create_builder_config(self) -> Config:
        return Config(self._trt)

    def create_optimization_profile(self) -> Profile:
        return Profile(self._trt)

    def build_serialized_network(self, network: Network, config: Config) -> bytes | None:
        """None, and a line in the log, where TensorRT would not build."""
        check(self._trt, self._real.build_serialized_network, (network, config), [Network, Config])
        if why := self._refused(network, config):
            self._log.log(self._trt.ILogger.Severity.ERROR, why)
            return None
        profile = config.profiles[0].shapes
        shapes = [torch.zeros(profile[x.name][1], dtype=TORCH[x.dtype.name]) for x in network.inputs]
        network.execute({x.name: value for x, value in zip(network.inputs, shapes, strict=True)}, shapes_only=True)
        text = b"plan %d" % next(_NUMBERS)
        self._known[text] = Plan(network, profile, frozenset(config.set))
        self._plans.append(self._known[text])
        return text

    def _refused(self, network: Network, config: Config) -> str:
        arrays = [*network.inputs, *network.marked]
        if not network.marked or len({x.name for x in arrays} - {""}) != len(arrays):
            return "Network must have at least one output, and names of its inputs and outputs must differ"
        if len(config.profiles) != 1 or set(config.profiles[0].shapes) != {x.name for x in network.inputs}:
            return "Network has dynamic or shape inputs, but no optimization profile has been defined"
        for tensor in network.inputs:
            for sizes in config.profiles[0].shapes[tensor.name]:
                if len(sizes) != len(tensor.shape) or any(
                    b not in (-1, a) for a, b in zip(sizes, tensor.shape, strict=False)
                ):
                    return f"profile of {tensor.name} has {sizes}, and the input {tensor.shape}"
        return ""


class Runtime:
    def __init__(self, trt: Any, real: Any, log: Any, known: dict[bytes, Plan]) -> None:
        check(trt, real.__init__, (log,))
        self._trt, self._real, self.log, self._known = trt, real, log, known

    def deserialize_cuda_engine(self, plan: bytes) -> Engine | None:
        check(self._trt, self._real.deserialize_cuda_engine, (plan,))
        return Engine(self._trt, self._known[plan]) if plan in self._known else None


class Engine:
    def __init__(self, trt: Any, plan: Plan) -> None:
        self._trt, self.plan = trt, plan
        self._tensors = [*plan.network.inputs, *plan.network.marked]
        self.num_io_tensors = len(self._tensors)

    def get_tensor_name(self, index: int) -> str:
        return str(self._tensors[index].name)

    def get_tensor_mode(self, name: str) -> Any:
        modes = self._trt.TensorIOMode
        return modes.INPUT if name in [x.name for x in self.plan.network.inputs] else modes.OUTPUT

    def create_execution_context(self) -> Context:
        return Context(self._trt, self.plan)


class Context:
    """An `IExecutionContext`."""

    streams: list[int] = []
    """That engines were queued on, by all contexts."""

    def __init__(self, trt: Any, plan: Plan) -> None:
        self._trt, self._plan = trt, plan
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        check(self._trt, self._trt.IExecutionContext.set_input_shape, (name, shape))
        least, _, most = self._plan.profile[name]
        if len(shape) != len(least) or not all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True)):
            return False
        self._shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        check(self._trt, self._trt.IExecutionContext.set_tensor_address, (name, memory))
        self._addresses[name] = memory
        return memory % ALIGNED == 0

    def infer_shapes(self) -> list[str]:
        """Dimensions with one name have to be equal."""
        named: dict[str, int] = {}
        for tensor in self._plan.network.inputs:
            for index, name in tensor.named.items():
                size = self._shapes.get(tensor.name, ())[index : index + 1]
                if size and named.setdefault(name, size[0]) != size[0]:
                    raise RuntimeError(f"{name} is {named[name]} and {size[0]}")
        return [tensor.name for tensor in self._plan.network.inputs if tensor.name not in self._shapes]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if self.infer_shapes():
            return (-1,)
        kinds = {tensor.name: TORCH[tensor.dtype.name] for tensor in self._plan.network.inputs}
        zeros = {key: torch.zeros(shape, dtype=kinds[key]) for key, shape in self._shapes.items()}
        return tuple(self._plan.network.execute(zeros, shapes_only=True)[name].shape)

    def execute_async_v3(self, stream_handle: int) -> bool:
        check(self._trt, self._trt.IExecutionContext.execute_async_v3, (stream_handle,))
        network = self._plan.network
        if self.infer_shapes() or set(self._addresses) != {x.name for x in [*network.inputs, *network.marked]}:
            return False
        self.streams.append(stream_handle)
        given = {x.name: self._memory(x, self._shapes[x.name]) for x in network.inputs}
        kept = {name: value.clone() for name, value in given.items()}
        results = network.execute(given)
        for tensor in network.marked:
            self._memory(tensor, tuple(results[tensor.name].shape)).copy_(results[tensor.name])
        changed = [name for name, value in given.items() if not _same_bytes(kept[name], value)]
        assert not changed, f"the network writes into its inputs {', '.join(changed)}"
        return True

    def _memory(self, tensor: Any, shape: tuple[int, ...]) -> torch.Tensor:
        kind = TORCH[tensor.dtype.name]
        size = math.prod(shape) * kind.itemsize
        memory = (ctypes.c_char * size).from_address(self._addresses[tensor.name])
        return torch.frombuffer(memory, dtype=kind).reshape(shape)


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """No number equals NaN."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def plugins_of(plan: Plan) -> list[Any]:
    """The plugin layers of an engine, in order."""
    return [layer for layer in plan.network.layers if layer.kind == "plugin"]
