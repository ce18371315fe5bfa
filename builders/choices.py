"""`--backend`, `--runner` and `--dtype auto`: what this machine and this checkpoint suggest, and why."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from builders.checkpoint import is_full_precision
from trtspec.errors import MissingDependency
from trtspec.executors.tensorrt_llm.probe import PINNED, Probe

BACKENDS = ("auto", "embedded", "tensorrt_llm")
EMBEDDED_DTYPES = ("auto", "float32", "bfloat16")
DTYPES = (*EMBEDDED_DTYPES, "float16")
RUNNERS = ("auto", "openvino", "eager")
EMBEDDED_QUANTIZATIONS = ("none", "int8")
QUANTIZATIONS = (*EMBEDDED_QUANTIZATIONS, "int4")
_CPU_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
"""x86 and, last, ARM. Without one of these, bfloat16 is emulated and slower than float32."""


@dataclass(frozen=True, slots=True)
class Choice:
    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.value} ({self.why})"


def choose_backend(asked: str, *, probe: Callable[[], Probe], gpu: bool, demo: bool = False) -> Choice:
    """The backend to build for. It is looked for only where the choice is ours, and only behind a GPU.

    `demo`: the target is the demo model, whose drafters are of the embedded backend.
    """
    if asked != "auto":
        return Choice(asked, "asked for")
    if demo:
        return Choice("embedded", "the demo model's own")
    if not gpu:
        return Choice("embedded", "no NVIDIA GPU here")
    found = probe()
    if found.reason is not None:
        return Choice("embedded", f"tensorrt_llm is {found.reason}")
    if found.version != PINNED or not found.engine_flow:
        return Choice("embedded", f"tensorrt-llm is {found.version} and not {PINNED}, with compiled engines")
    return Choice("tensorrt_llm", f"tensorrt-llm {PINNED} and an NVIDIA GPU are here")


def choose_runner(asked: str, *, openvino: bool, gpu: bool) -> Choice:
    """What runs the decoder; `openvino` and `gpu` say what was found."""
    if asked == "openvino" and not openvino:
        raise MissingDependency("--runner openvino needs the package openvino; pip install 'trtspec[embedded]'")
    if asked != "auto":
        return Choice(asked, "asked for")
    if gpu:
        return Choice("eager", "a GPU is here, and OpenVINO would run on the CPU")
    return Choice("openvino", "compiled for CPUs") if openvino else Choice("eager", "no openvino here")


def choose_dtype(asked: str, stored: str, runner: str, native: str | None) -> Choice:
    """The type of the packed weights; `stored` is the checkpoint's, `native` what computes in bfloat16 here."""
    if asked != "auto":
        return Choice(asked, "asked for")
    if is_full_precision(stored):
        return Choice("float32", f"the checkpoint is {stored}")
    if runner == "openvino":
        return Choice("bfloat16", f"the checkpoint is {stored}, and OpenVINO widens weights as it reads them")
    if native is None:
        return Choice("float32", "this CPU has no bfloat16 instructions, and eager PyTorch would be slower without")
    return Choice("bfloat16", f"the checkpoint is {stored} and this machine has {native}")


def has_openvino() -> bool:
    return importlib.util.find_spec("openvino") is not None


def has_gpu(devices: Path = Path("/proc/driver/nvidia/gpus")) -> bool:
    """Whether NVIDIA's driver lists a GPU."""
    return devices.is_dir() and any(devices.iterdir())


def native_bfloat16(flags: Collection[str], *, gpu: bool) -> str | None:
    """What computes in bfloat16 without emulation here: a GPU, or a CPU by its flag."""
    return "an NVIDIA GPU" if gpu else next((flag for flag in _CPU_FLAGS if flag in flags), None)
