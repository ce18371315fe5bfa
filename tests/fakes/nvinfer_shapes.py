"""Types and sizes of what a layer gives, before anything runs; -1 where a size is not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

UNKNOWN = -1
Described = tuple[Any, Sequence[int]]


def described(trt: Any, layer: Any) -> list[Described]:
    """Of each output of a double's layer."""
    if layer.kind == "plugin":
        return _plugin(layer)
    x = layer.inputs
    kinds = trt.DataType
    rules: Mapping[str, Callable[[], Described]] = {
        "constant": lambda: (_named(trt, layer.given["value"]), tuple(layer.given["value"].shape)),
        "cast": lambda: (layer.given["to"], x[0].shape),
        "unary": lambda: (kinds.BOOL, x[0].shape),
        "elementwise": lambda: (_result(kinds, layer, x[0]), _broadcast(x)),
        "select": lambda: (x[1].dtype, _broadcast(x)),
        "reduce": lambda: (x[0].dtype, _with(x[0].shape, layer.given["reduced"], 1)),
        "gather": lambda: (x[0].dtype, x[1].shape),
        "gather_v2": lambda: (x[0].dtype, x[1].shape),
        "concatenation": lambda: (x[0].dtype, _with(x[0].shape, layer.axis, _joined(layer))),
        "slice": lambda: (x[0].dtype, [UNKNOWN] * len(x[0].shape)),
        "unsqueeze": lambda: (x[0].dtype, _unsqueezed(x[0].shape, _axis(layer))),
        "squeeze": lambda: (x[0].dtype, [size for i, size in enumerate(x[0].shape) if i != _axis(layer)]),
        "shape": lambda: (kinds.INT64, [len(x[0].shape)]),
        "shuffle": lambda: (x[0].dtype, [UNKNOWN] * (x[1].shape[0] if len(x) > 1 else len(x[0].shape))),
        "fill": lambda: (layer.given["to"], [UNKNOWN]),
    }
    return [rules[layer.kind]()]


def _plugin(layer: Any) -> list[Described]:
    """What the plugin says of its outputs; NVIDIA's layer has made placeholders of their sizes."""
    kinds = layer.given["plugin"].get_output_data_types(
        [item.dtype for item in layer.inputs], [len(item.shape) for item in layer.inputs]
    )
    ranks = layer.given["ranks"]
    return [(kind, [UNKNOWN] * rank) for kind, rank in zip(kinds, ranks, strict=True)]


def _result(kinds: Any, layer: Any, first: Any) -> Any:
    return kinds.BOOL if layer.given["op"] in ("EQUAL", "LESS", "AND", "OR") else first.dtype


def _named(trt: Any, value: Any) -> Any:
    names = {"float32": "FLOAT", "int32": "INT32", "int64": "INT64"}
    return getattr(trt.DataType, names[str(value.dtype).removeprefix("torch.")])


def _broadcast(tensors: Sequence[Any]) -> list[int]:
    return [_common(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]


def _common(sizes: Sequence[int]) -> int:
    known = [size for size in sizes if size not in (1, UNKNOWN)]
    assert len(set(known)) <= 1, f"sizes {sizes} do not go together"
    return known[0] if known else min(sizes)


def _with(shape: Sequence[int], axis: int, size: int) -> list[int]:
    return [size if index == axis else have for index, have in enumerate(shape)]


def _joined(layer: Any) -> int:
    sizes = [tensor.shape[layer.axis] for tensor in layer.inputs]
    return UNKNOWN if UNKNOWN in sizes else sum(sizes)


def _unsqueezed(shape: Sequence[int], axis: int) -> list[int]:
    return [*shape[:axis], 1, *shape[axis:]]


def _axis(layer: Any) -> int:
    """Of a layer whose axes have to be constants."""
    (made_by,) = [other for other in layer.network.layers if layer.inputs[1] in other.outputs]
    assert made_by.kind == "constant", f"axes of {layer.kind} are no constant"
    return int(made_by.given["value"])
