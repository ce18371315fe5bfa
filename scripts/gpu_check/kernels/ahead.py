"""The PTX that engines hold, launched as TensorRT launches it, beside what the launchers leave.

Each launch of every kernel twice. Compiled with what Triton's launcher relies on, it has to leave the same bits: the
same code, but of the driver's assembler, and with an entry that takes what TensorRT passes. No arithmetic is left to an
assembler: sums and quotients say how they are rounded, and what is approximate is one instruction of the chip. Compiled
with what a plugin relies on, in an engine that knows the width alone, sums may be added up in another order; all else
is the same again. Outputs are full of rubbish before a launch, so that a place that was not written shows, as one
beyond the end does.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from plugins import known, symbolic
from plugins.aot import CompiledKernel, compile_kernel
from plugins.contract import LOGITS, Array, KernelSpec
from plugins.specs import KERNELS
from scripts.gpu_check.checks import Check
from scripts.gpu_check.kernels.comparing import Tolerance, difference, difference_in_bits
from scripts.gpu_check.kernels.driver import Argument, Driver, Function
from scripts.gpu_check.kernels.launches import Launch
from trtspec.errors import TrtspecError

SUMS = Tolerance(atol=1e-6, rtol=4e-6)
"""Of float32 sums of a few thousand positive numbers, added up in two orders, and of their logarithms."""
_RUBBISH = 0xA5
_BEYOND = 256
"""Bytes after an output that nobody may write."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What a compiled kernel relies on."""

    title: str
    multiples: Callable[[Launch], tuple[str, ...]]
    exact: bool
    """Whether every bit is the launcher's; else sums are near."""


def launchers_multiples(launch: Launch) -> tuple[str, ...]:
    """What Triton sees in the arguments: all arrays of PyTorch are aligned, and numbers are what they are."""
    spec, sizes = launch.spec, launch.sizes
    return tuple(name for name in spec.arguments if name not in spec.scalars or sizes[name] % 16 == 0)


def plugins_multiples(launch: Launch) -> tuple[str, ...]:
    """What a plugin relies on, where every run has this width and the numbers are these."""
    told = {name: size for name, size in launch.sizes.items() if name in ("width", *launch.numbers)}
    return symbolic.multiples_of_16(launch.spec, known.known_sizes(launch.spec, KERNELS.values(), told))


AS_THE_LAUNCHER = Variant("aligned as PyTorch's arrays", launchers_multiples, exact=True)
AS_THE_PLUGIN = Variant("aligned as a plugin's arrays", plugins_multiples, exact=False)
VARIANTS = (AS_THE_LAUNCHER, AS_THE_PLUGIN)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A launch to be repeated from PTX."""

    launch: Launch
    variant: Variant
    compiled: CompiledKernel | Exception
    """What went wrong, where nothing was compiled."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the driver made of a kernel."""

    kernel: str
    logits: str
    variant: str
    function: Function
    shared_bytes: int


def compile_all(launches: Sequence[Launch], architecture: int) -> list[Loaded]:
    """Each launch for each variant; side by side, because the compiler is a process, and the same one once."""
    wanted = [(launch, variant, _Request.of(launch, variant)) for launch in launches for variant in VARIANTS]
    distinct = list(dict.fromkeys(request for _, _, request in wanted))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        compiled = dict(zip(distinct, pool.map(lambda request: request.compiled(architecture), distinct), strict=True))
    return [Loaded(launch, variant, compiled[request]) for launch, variant, request in wanted]


@dataclass(frozen=True, slots=True)
class _Request:
    """What the compiler is asked for."""

    name: str
    spec: KernelSpec = field(compare=False)
    """The one of that name."""
    logits: str
    multiples: tuple[str, ...]

    @classmethod
    def of(cls, launch: Launch, variant: Variant) -> _Request:
        return cls(launch.spec.name, launch.spec, logits_of(launch), tuple(sorted(variant.multiples(launch))))

    def compiled(self, architecture: int) -> CompiledKernel | Exception:
        """Of one kernel only: others are launched all the same."""
        try:
            return compile_kernel(self.spec, self.logits, architecture, multiples=self.multiples)
        except Exception as error:  # whatever the compiler's process comes to
            return error


def check(loaded: Sequence[Loaded], driver: Driver) -> tuple[list[Check], list[Seen]]:
    """A check a kernel, over all its launches, and what the driver says of each."""
    wrong: dict[str, list[str]] = {item.launch.spec.name: [] for item in loaded}
    seen, launched = [], set()
    for item in loaded:
        name, compiled = item.launch.spec.name, item.compiled
        if isinstance(compiled, Exception):
            wrong[name].append(f"{logits_of(item.launch)}, {item.variant.title}: {compiled!s:.300}")
            continue
        try:
            function = driver.load(compiled.entry, compiled.ptx)
            seen.append(Seen(name, logits_of(item.launch), item.variant.title, function, compiled.shared_bytes))
            wrong[name] += _differences(item.launch, item.variant, compiled, driver, function)
            launched.add(name)
        except (TrtspecError, RuntimeError) as error:  # the latter where a launch went wrong on the device
            wrong[name].append(str(error))
    missing = sorted(set(KERNELS) - launched)
    checks = [_check(name, told, sum(item.kernel == name for item in seen)) for name, told in wrong.items()]
    told = f"not {', '.join(missing)}" if missing else f"all {len(launched)}"
    return [*checks, Check("every kernel was launched", not missing, told)], seen


def arguments_of(launch: Launch, outputs: Sequence[Tensor]) -> list[Argument]:
    """What TensorRT passes: pointers of the inputs, int32 numbers, pointers of the outputs."""
    sizes = launch.sizes
    inputs = [ctypes.c_void_p(item.data_ptr()) for item in launch.inputs]
    numbers = [ctypes.c_int32(sizes[name]) for name in launch.spec.scalars]
    return [*inputs, *numbers, *(ctypes.c_void_p(item.data_ptr()) for item in outputs)]


def logits_of(launch: Launch) -> str:
    """The type of its logits; of a kernel that has none, any."""
    kinds = [_name(tensor) for item, tensor in zip(launch.spec.inputs, launch.inputs, strict=True) if _is_logits(item)]
    return kinds[0] if kinds else "float32"


def _differences(
    launch: Launch, variant: Variant, compiled: CompiledKernel, driver: Driver, function: Function
) -> list[str]:
    before = [tensor.clone() for tensor in launch.inputs]
    outputs = [
        _Output(array, wanted, _rubbish(wanted))
        for array, wanted in zip(launch.spec.outputs, launch.outputs, strict=True)
    ]
    grid = [launch.sizes[axis] for axis in launch.spec.grid]
    stream = torch.cuda.current_stream().cuda_stream if launch.inputs[0].is_cuda else 0
    arguments = arguments_of(launch, [output.tensor for output in outputs])
    driver.launch(function, grid, compiled.block_x, compiled.shared_bytes, stream, arguments)
    found = [text for output in outputs for text in output.differences(variant.exact)]
    arrays = zip(launch.spec.inputs, launch.inputs, before, strict=True)
    found += [difference_in_bits(f"input {array.name}", after, given) for array, after, given in arrays]
    return [f"{logits_of(launch)}, {variant.title}: {text}" for text in found if text is not None]


@dataclass(frozen=True, slots=True)
class _Output:
    """Room for what a kernel writes, and some more."""

    array: Array
    wanted: Tensor
    room: Tensor

    @property
    def tensor(self) -> Tensor:
        return self.room[: self.wanted.nbytes].view(self.wanted.dtype).view(self.wanted.shape)

    def differences(self, exact: bool) -> list[str | None]:
        name, found = self.array.name, self.tensor
        if exact or not found.dtype.is_floating_point:
            told = difference_in_bits(name, found, self.wanted)
        else:
            told = difference(name, found, self.wanted, SUMS)
        kept = bool((self.room[self.wanted.nbytes :] == _RUBBISH).all())
        return [told, None if kept else f"{name} is written beyond its end"]


def _rubbish(wanted: Tensor) -> Tensor:
    return torch.full((wanted.nbytes + _BEYOND,), _RUBBISH, dtype=torch.uint8, device=wanted.device)


def _is_logits(item: Array) -> bool:
    return item.dtype == LOGITS


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check(name: str, wrong: Sequence[str], launches: int) -> Check:
    detail = f"{launches} launches: arguments, bits and bounds as the launcher's"
    return Check(f"PTX of {name} with TensorRT's arguments", not wrong, wrong[0] if wrong else detail)
