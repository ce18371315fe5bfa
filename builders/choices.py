"""`--backend auto` and `--dtype auto`: what this machine and this checkpoint suggest, and why."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from builders.checkpoint import is_full_precision
from trtspec.errors import ConfigError

BACKENDS = ("auto", "embedded", "tensorrt_llm")
DTYPES: Mapping[str, int | None] = {"auto": None, "float32": 4, "bfloat16": 2}
"""By name, the bytes of a value."""
_CPU_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
"""x86 and, last, ARM. Without one of these, bfloat16 is emulated and slower than float32."""


@dataclass(frozen=True, slots=True)
class Choice:
    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.value} ({self.why})"


def choose_backend(asked: str, *, tensorrt_llm: bool, gpu: bool) -> Choice:
    """The backend to build for; `tensorrt_llm` and `gpu` say what was found."""
    if asked == "tensorrt_llm":
        raise ConfigError("--backend tensorrt_llm: this release builds embedded engines only; use --backend embedded")
    if asked == "embedded":
        return Choice("embedded", "asked for")
    if tensorrt_llm and gpu:
        return Choice("embedded", "tensorrt_llm and a GPU are here, but this release builds embedded engines only")
    missing = [name for name, found in (("tensorrt_llm", tensorrt_llm), ("NVIDIA GPU", gpu)) if not found]
    return Choice("embedded", f"no {' and no '.join(missing)} here")


def choose_dtype(asked: str, stored: str, cpu_bfloat16: str | None) -> Choice:
    """The type of the packed weights; `stored` is the checkpoint's, `cpu_bfloat16` the CPU's flag for bfloat16."""
    if asked != "auto":
        return Choice(asked, "asked for")
    if is_full_precision(stored):
        return Choice("float32", f"the checkpoint is {stored}")
    if cpu_bfloat16 is None:
        return Choice("float32", "this CPU has no bfloat16 instructions")
    return Choice("bfloat16", f"the checkpoint is {stored} and this CPU has {cpu_bfloat16}")


def has_tensorrt_llm() -> bool:
    return importlib.util.find_spec("tensorrt_llm") is not None


def has_gpu(devices: Path = Path("/proc/driver/nvidia/gpus")) -> bool:
    """Whether NVIDIA's driver lists a GPU."""
    return devices.is_dir() and any(devices.iterdir())


def cpu_bfloat16(flags: Collection[str]) -> str | None:
    """The flag of a CPU for native bfloat16 arithmetic, if it has one."""
    return next((flag for flag in _CPU_FLAGS if flag in flags), None)
