"""The kernels there are, by name. A file of specs is one import and one entry here; none of it needs Triton.

`python -m plugins.specs` prints them as a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from plugins import sampling_specs, verification_specs
from plugins.contract import Array, KernelSpec

_FILES: Sequence[Sequence[KernelSpec]] = (sampling_specs.SPECS, verification_specs.SPECS)

KERNELS: Mapping[str, KernelSpec] = {spec.name: spec for file in _FILES for spec in file}


def as_markdown(kernels: Iterable[KernelSpec] = KERNELS.values()) -> str:
    """What each takes and gives, in the order of its arguments."""
    header = ["kernel", "inputs", "int32 numbers", "outputs", "grid", "constants", "warps"]
    lines = [header, ["---"] * len(header), *map(_row, kernels)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(spec: KernelSpec) -> list[str]:
    constants = ", ".join(f"{name} {size}" for name, size in spec.constants.items())
    quotients = {name: f"{name} = ⌈{dividend} / {divisor}⌉" for name, (dividend, divisor) in spec.derived.items()}
    grid = " × ".join(quotients.get(axis, axis) for axis in spec.grid)
    arrays = ("<br>".join(map(_array, items)) for items in (spec.inputs, spec.outputs))
    inputs, outputs = arrays
    return [f"`{spec.name}`", inputs, ", ".join(spec.scalars), outputs, grid, constants, str(spec.num_warps)]


def _array(item: Array) -> str:
    return f"`{item.name}` {item.dtype} [{', '.join(map(str, item.shape))}]"


if __name__ == "__main__":
    print(as_markdown())
