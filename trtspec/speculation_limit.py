"""A bound on drafts that is set while requests run, beside what each of them asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeculationLimit:
    """Bounds the drafts of all requests, whatever they ask for. No text depends on it."""

    max_depth: int | None = None
    """Deepest draft; 0 switches speculation off, None bounds nothing."""
    by: str = "the operator"
    """Who set it, as clients are told."""

    def __str__(self) -> str:
        return "any depth" if self.max_depth is None else f"depth {self.max_depth}"

    @property
    def off(self) -> bool:
        return self.max_depth == 0

    def cap(self, depth: int) -> int:
        """How deep a draft may be of which a depth is wanted."""
        return depth if self.max_depth is None else min(depth, self.max_depth)


NO_LIMIT = SpeculationLimit()
