"""Runs plugins that NVIDIA's Python layer made: what they announce, and what they write.

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
from tests.nvinfer import announced, builder_of_expressions, dimensions

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
    builder = builder_of_expressions(trt)
    said = announced(plugin, [x.dtype for x in tensors], dimensions(builder, [x.shape for x in inputs]), builder)
    if shapes_only:
        return [torch.zeros(shape, dtype=TORCH[kind.name]) for shape, kind in zip(said.sizes, said.kinds, strict=True)]
    numbers = {name: int(value[0]) for name, value in plugin.attrs.items() if name != defs.ARCHITECTURE}
    written = launch.launch(spec_of(plugin), *(x.contiguous() for x in inputs), **numbers)
    assert [list(item.shape) for item in written] == said.sizes, plugin.plugin_name
    return written


def launched(spec: KernelSpec, shapes: Sequence[Sequence[int]], numbers: Mapping[str, int]) -> SimpleNamespace:
    """Grid and numbers that our own launcher takes for inputs of these shapes."""
    sizes: dict[str, int] = {**spec.constants, **numbers}
    for item, shape in zip(spec.inputs, shapes, strict=True):
        sizes |= {name: size for name, size in zip(item.shape, shape, strict=True) if isinstance(name, str)}
    sizes |= {name: -(-sizes[of] // sizes[by]) for name, (of, by) in spec.derived.items()}
    grid = (*(sizes[axis] for axis in spec.grid), 1, 1)[:3]
    return SimpleNamespace(grid=grid, numbers=[sizes[name] for name in spec.scalars])
