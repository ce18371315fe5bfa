"""Shapes of a kernel's arrays as TensorRT's expressions: engines are built before any size is known.

A name is a dimension of an input, a constant, a number that the caller gives, or a quotient of these. Everything here
runs in three passes of TensorRT: over placeholders, over expressions, and over expressions of launch parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plugins.contract import LOGITS, Array, KernelSpec
from trtspec.errors import KernelError

_AUTOTUNE_TYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64", LOGITS: "FP32|FP16|BF16"}
"""What the optimizer calls them; bars mean that all logits of a plugin change together."""
_LOGITS_NAMES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}
_TRT_NAMES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "int32": "INT32", "int64": "INT64"}


def numbers_of(spec: KernelSpec) -> tuple[str, ...]:
    """The scalars that no shape tells, in order: the caller gives them."""
    known = {name for item in spec.inputs for name in item.shape} | set(spec.derived) | set(spec.constants)
    return tuple(name for name in spec.scalars if name not in known)


def sizes(spec: KernelSpec, inputs: Sequence[Any], numbers: Mapping[str, int], trtp: Any) -> dict[str, Any]:
    """Every name of a specification: a symbolic expression, or an integer where it is known already."""
    found: dict[str, Any] = {**spec.constants, **numbers}
    for item, given in zip(spec.inputs, inputs, strict=True):
        if given.ndim != len(item.shape):
            raise KernelError(f"{spec.name}: {item.name} has {given.ndim} dimensions; expected {item.shape}")
        for name, size in zip(item.shape, given.shape_expr, strict=True):
            if isinstance(name, str):
                found.setdefault(name, size)
    return with_quotients(spec, found, trtp)


def with_quotients(spec: KernelSpec, found: Mapping[str, Any], trtp: Any) -> dict[str, Any]:
    """Some names, and those that are derived from them; `trtp.cdiv` divides what is no integer yet."""
    derived = {
        name: _quotient(found[dividend], found[divisor], trtp) for name, (dividend, divisor) in spec.derived.items()
    }
    return {**found, **derived}


def logits_type(spec: KernelSpec, inputs: Sequence[Any]) -> str:
    """What the logits among a plugin's inputs are; float32 where there are none, which changes nothing."""
    for item, given in zip(spec.inputs, inputs, strict=True):
        if item.dtype == LOGITS:
            kind = given.dtype.name
            if kind not in _LOGITS_NAMES:
                raise KernelError(f"{spec.name}: {item.name} is {kind}; expected {', '.join(_LOGITS_NAMES)}")
            return _LOGITS_NAMES[kind]
    return "float32"


def multiples_of_16(spec: KernelSpec, found: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments of a kernel that are multiples of 16 in every engine run.

    Scalars by what is known of them when building; and addresses of logits, where rows are so many numbers long that
    any row of an aligned array is aligned. TensorRT documents 256 bytes for the arrays that an engine is given; for
    those in between, 16 are taken for granted, as by all plugins that load vectors.
    """
    scalars = tuple(name for name in spec.scalars if _is_multiple(found[name]))
    logits = tuple(item for item in spec.inputs if item.dtype == LOGITS)
    return (*(item.name for item in logits if _is_multiple(_shape(item, found)[-1])), *scalars)


def describe_outputs(spec: KernelSpec, inputs: Sequence[Any], numbers: Mapping[str, int], trt: Any) -> tuple[Any, ...]:
    """Type and shape of each output, of a plugin's inputs."""
    found = sizes(spec, inputs, numbers, trt.plugin)
    logits = logits_type(spec, inputs)
    return tuple(
        trt.plugin.from_shape_expr(_shape(item, found), dtype=trt_type(item, logits, trt)) for item in spec.outputs
    )


def trt_type(item: Array, logits: str, trt: Any) -> Any:
    """TensorRT's type of an array."""
    return getattr(trt.DataType, _TRT_NAMES[logits if item.dtype == LOGITS else item.dtype])


def autotune_types(spec: KernelSpec) -> str:
    """The types that each input and output may have."""
    return ", ".join(_AUTOTUNE_TYPES[item.dtype] for item in (*spec.inputs, *spec.outputs))


def _shape(item: Array, found: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(found[size] if isinstance(size, str) else size for size in item.shape)


def _is_multiple(size: Any) -> bool:
    if isinstance(size, int):
        return size % 16 == 0
    return bool(size.is_constant) and size.constant_value() % 16 == 0


def _quotient(dividend: Any, divisor: Any, trtp: Any) -> Any:
    if isinstance(dividend, int) and isinstance(divisor, int):
        return -(-dividend // divisor)
    return trtp.cdiv(dividend, divisor)
