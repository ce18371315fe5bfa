"""How outputs of kernels compare with what they have to be: integers and bits exactly, numbers within a tolerance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What rounding may change."""

    atol: float
    rtol: float


EXACT = Tolerance(0.0, 0.0)


def difference(name: str, ours: Tensor, theirs: Tensor, tolerance: Tolerance = EXACT) -> str | None:
    """Where two arrays part, in words; None where they agree. NaN agrees with NaN, an infinity with itself."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{name} is {ours.dtype} {list(ours.shape)}, wanted {theirs.dtype} {list(theirs.shape)}"
    if ours.dtype.is_floating_point:
        same = torch.isclose(ours.double(), theirs.double(), tolerance.rtol, tolerance.atol, equal_nan=True)
    else:
        same = ours == theirs
    return None if bool(same.all()) else _told(name, ours, theirs, ~same)


def difference_in_bits(name: str, ours: Tensor, theirs: Tensor) -> str | None:
    """The same, of every bit: of two zeros, too, and of NaN's."""
    kind = _BITS[ours.element_size()]
    apart = ours.view(kind) != theirs.view(kind)
    return _told(name, ours, theirs, apart) if bool(apart.any()) else None


def largest(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference between finite numbers."""
    apart = (ours.double() - theirs.double()).abs()
    return float(apart[apart.isfinite()].max()) if bool(apart.isfinite().any()) else 0.0


def _told(name: str, ours: Tensor, theirs: Tensor, apart: Tensor) -> str:
    at = tuple(apart.nonzero()[0].tolist())
    count = int(apart.sum())
    return f"{name} differs in {count} of {apart.numel()} places, first at {list(at)}: {ours[at]}, wanted {theirs[at]}"
