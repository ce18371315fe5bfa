"""The output `TopLogits` of a target, planned: what its network tells of every position, and what that takes.

`builders.tensorrt_llm.tapped` puts it into the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plugins import sampling_specs
from plugins.contract import KernelSpec
from plugins.defs import NAMESPACE, plugin_name
from plugins.sampling_specs import MOST

_BYTES = {"float32": 4, "int32": 4, "int64": 8}


@dataclass(frozen=True, slots=True)
class TopLogits:
    """What is told of each position."""

    most: int = MOST
    """How many logits, best first."""

    @property
    def specs(self) -> tuple[KernelSpec, KernelSpec]:
        """The launches, in order."""
        return sampling_specs.top_logits(self.most)

    @property
    def row(self) -> int:
        """Numbers of a position: logits, ids, and the log of the sum of all exponentials."""
        return self.specs[-1].constants["ROW"]

    @property
    def dtype(self) -> str:
        """Of those numbers."""
        return self.specs[-1].outputs[0].dtype

    @property
    def plan(self) -> dict[str, Any]:
        """As a dry run prints it."""
        return {
            "most": self.most,
            "row": self.row,
            "plugins": [f"{NAMESPACE}::{plugin_name(spec)}" for spec in self.specs],
        }

    def bytes_per_token(self, width: int, item: int) -> int:
        """Work space of a position whose row of logits is so wide: that row, and what each launch leaves."""
        sizes = {"rows": 1, "width": width}
        for spec in self.specs:
            sizes |= spec.constants
            sizes |= {name: -(-sizes[whole] // sizes[part]) for name, (whole, part) in spec.derived.items()}
        left = (array for spec in self.specs for array in spec.outputs)
        return width * item + sum(_BYTES[array.dtype] * _count(array.shape, sizes) for array in left)


def _count(shape: Sequence[str | int], sizes: dict[str, int]) -> int:
    count = 1
    for size in shape:
        count *= size if isinstance(size, int) else sizes[size]
    return count
