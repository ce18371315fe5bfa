"""What each kernel takes and gives, as data: the launchers, the ahead-of-time compiler and the plugins all read it.

The order of a kernel's arguments is TensorRT's: pointers of the inputs, then integer scalars, then pointers of the
outputs. Inputs are read only, every output is written whole, and nothing is kept between two launches. Arrays are
contiguous, row by row. A kernel that needs the whole chip for a few rows leaves parts, which a second one merges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LOGITS = "logits"
"""A type of logits: any of `LOGITS_TYPES`."""
LOGITS_TYPES = ("float32", "float16", "bfloat16")
TRITON_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int32": "i32", "int64": "i64"}
"""What Triton calls them in signatures."""


@dataclass(frozen=True, slots=True)
class Array:
    """An input or an output, by name."""

    name: str
    dtype: str
    """`LOGITS`, float32, int32 or int64."""
    shape: tuple[str | int, ...]
    """Names of dimensions and of constants, and sizes."""


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One launch."""

    name: str
    """Of the function, in the module of `plugins.kernels` that `module` names."""
    module: str
    inputs: tuple[Array, ...]
    scalars: tuple[str, ...]
    """int32 each: dimensions of the inputs by name, or numbers that the caller gives."""
    outputs: tuple[Array, ...]
    grid: tuple[str, ...]
    """Programs along each axis: names of dimensions, or of `derived` ones."""
    constants: Mapping[str, int] = field(default_factory=dict)
    """`tl.constexpr` arguments, which come last."""
    derived: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Dimensions that are quotients, rounded up: of a dimension, and a constant."""
    num_warps: int = 4

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of all arguments but the constants, in order."""
        arrays = (item.name for item in self.inputs)
        return (*arrays, *self.scalars, *(item.name for item in self.outputs))

    def signature(self, logits: str) -> dict[str, str]:
        """Triton's signature for a type of logits, without the constants."""
        types = {LOGITS: TRITON_TYPES[logits], **TRITON_TYPES}
        inputs = {item.name: f"*{types[item.dtype]}" for item in self.inputs}
        outputs = {item.name: f"*{types[item.dtype]}" for item in self.outputs}
        return {**inputs, **dict.fromkeys(self.scalars, "i32"), **outputs}
