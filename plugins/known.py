"""What is known of a kernel's sizes when an engine is built, where there is no TensorRT to ask: some have values.

All others vary. What follows from the known ones is known, too: quotients, and in the kernels that take what another
leaves, the dimensions of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plugins import symbolic
from plugins.contract import KernelSpec


@dataclass(frozen=True, slots=True)
class Varying:
    """A size that every run may have another of, as TensorRT's expressions are."""

    is_constant: bool = False

    @staticmethod
    def cdiv(dividend: Any, divisor: Any) -> Varying:
        return VARYING


VARYING = Varying()


def known_sizes(spec: KernelSpec, kernels: Iterable[KernelSpec], known: Mapping[str, int]) -> dict[str, Any]:
    """Every name of a specification: a number, or `VARYING`."""
    named = {name for item in spec.inputs for name in item.shape if isinstance(name, str)} | set(spec.scalars)
    found: dict[str, Any] = {**dict.fromkeys(sorted(named), VARYING), **_left_by_others(spec, kernels, known)}
    found |= {name: size for name, size in known.items() if name in named} | dict(spec.constants)
    return symbolic.with_quotients(spec, found, VARYING)


def _left_by_others(spec: KernelSpec, kernels: Iterable[KernelSpec], known: Mapping[str, int]) -> dict[str, int]:
    """Dimensions of the inputs that are quotients in the kernel that writes them, whose outputs it takes all."""
    found: dict[str, int] = {}
    for other in kernels:
        if set(other.outputs) <= set(spec.inputs):
            sizes = {dividend: known.get(dividend, VARYING) for dividend, _ in other.derived.values()}
            whole = symbolic.with_quotients(other, {**sizes, **other.constants}, VARYING)
            found |= {name: whole[name] for name in other.derived}
    return found
