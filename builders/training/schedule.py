"""How far a training run is, and what follows from that: learning rate and depth."""

from __future__ import annotations

import math
from dataclasses import dataclass

_WARM_UP = 0.02
_LAST = 0.02
"""Share of the learning rate that is left at the end."""
_DEEPEN = 0.8
"""Share of a run in which one depth after the other joins: all build on the first, and a step costs as its depths."""


@dataclass(frozen=True, slots=True)
class Budget:
    """When a run ends: after so many minutes of training, or so many steps where they are given."""

    minutes: float
    steps: int | None = None

    def progress(self, steps: int, seconds: float) -> float:
        """From 0 to 1."""
        done = seconds / (60 * self.minutes) if self.steps is None else steps / self.steps
        return min(done, 1.0)


def rate_share(progress: float) -> float:
    """Of the highest learning rate: a linear warm-up, then half a cosine."""
    if progress < _WARM_UP:
        return max(progress / _WARM_UP, 0.02)
    turned = (progress - _WARM_UP) / (1 - _WARM_UP)
    return _LAST + (1 - _LAST) * (1 + math.cos(math.pi * turned)) / 2


def depth_at(progress: float, depth: int) -> int:
    """So many depths are learnt."""
    return min(1 + int(depth * progress / _DEEPEN), depth)
