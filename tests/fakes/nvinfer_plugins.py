"""Runs plugins that NVIDIA's Python layer made: what they announce, what engines would hold, and what they write.

What a plugin writes is computed by its kernel in Triton's interpreter, and has to be what the plugin announced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from plugins import defs, launch
from plugins.contract import KernelSpec
from plugins.specs import KERNELS
from tests.nvinfer import Scalars, builder_of_expressions, described

TORCH = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}
SPECS = {defs.plugin_name(spec): spec for spec in KERNELS.values()}


def spec_of(plugin: Any) -> KernelSpec:
    return SPECS[plugin.plugin_name]


def outputs(
    trt: Any, plugin: Any, tensors: Sequence[Any], inputs: Sequence[torch.Tensor], shapes_only: bool
) -> Sequence[torch.Tensor]:
    """What a plugin writes for these inputs, or zeros of the shapes that it announces."""
    shapes, kinds = announced(trt, plugin, [tensor.dtype for tensor in tensors], [x.shape for x in inputs])
    if shapes_only:
        return [torch.zeros(shape, dtype=TORCH[kind.name]) for shape, kind in zip(shapes, kinds, strict=True)]
    numbers = {name: int(value[0]) for name, value in plugin.attrs.items() if name != defs.ARCHITECTURE}
    written = launch.launch(spec_of(plugin), *(x.contiguous() for x in inputs), **numbers)
    assert [list(item.shape) for item in written] == shapes, plugin.plugin_name
    return written


def announced(trt: Any, plugin: Any, kinds: Sequence[Any], shapes: Sequence[Sequence[int]]) -> tuple[list[Any], Any]:
    """Shapes and types of a plugin's outputs, for inputs of these types and shapes."""
    builder = builder_of_expressions(trt)
    given = plugin.get_output_data_types(list(kinds), [len(shape) for shape in shapes])
    plugin.get_output_shapes([[builder.dimension(size) for size in shape] for shape in shapes], [], builder)
    return [[size._expr.value for size in item.shape_expr] for item in plugin.output_descs], given


def baked(trt: Any, plugin: Any, kinds: Sequence[Any], shapes: Sequence[Sequence[int]]) -> SimpleNamespace:
    """Entry, text, grid and numbers that an engine would hold, for inputs of these types and shapes."""
    made_shapes, made_kinds = announced(trt, plugin, kinds, shapes)
    arrays = [described(trt, *item) for item in zip([*shapes, *made_shapes], [*kinds, *made_kinds], strict=True)]
    parameters, scalars = SimpleNamespace(), Scalars()
    plugin.set_tactic(0)
    plugin.get_launch_params([], arrays, len(kinds), parameters, scalars, builder_of_expressions(trt))
    descriptions = [item.desc for item in arrays]
    entry, text = plugin.get_kernel(descriptions[: len(kinds)], descriptions[len(kinds) :])
    grid = tuple(getattr(parameters, axis).expr.value for axis in ("grid_x", "grid_y", "grid_z"))
    numbers = [scalars[index].expr.value for index in range(scalars.nbSymExprs)]
    return SimpleNamespace(entry=entry, text=text.decode(), grid=grid, numbers=numbers)


def launched(spec: KernelSpec, shapes: Sequence[Sequence[int]], numbers: Mapping[str, int]) -> SimpleNamespace:
    """Grid and numbers that our own launcher takes for inputs of these shapes."""
    sizes: dict[str, int] = {**spec.constants, **numbers}
    for item, shape in zip(spec.inputs, shapes, strict=True):
        sizes |= {name: size for name, size in zip(item.shape, shape, strict=True) if isinstance(name, str)}
    sizes |= {name: -(-sizes[of] // sizes[by]) for name, (of, by) in spec.derived.items()}
    grid = (*(sizes[axis] for axis in spec.grid), 1, 1)[:3]
    return SimpleNamespace(grid=grid, numbers=[sizes[name] for name in spec.scalars])
