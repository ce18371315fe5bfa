"""A chi-square test that pools rare cells, with a fixed false-alarm rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

FALSE_ALARM = 1e-6
SMALLEST_CELL = 10.0
"""Below this the chi-square approximation is poor: such cells are pooled."""


@dataclass(frozen=True)
class Fit:
    statistic: float
    limit: float
    impossible: int
    """Draws that the law gives probability 0."""

    @property
    def good(self) -> bool:
        return self.impossible == 0 and self.statistic <= self.limit


def fit(counts: NDArray[np.int64], law: NDArray[np.float64]) -> Fit:
    """How well counts fit a law over the same cells."""
    expected = law.ravel() * counts.sum()
    observed = counts.ravel().astype(float)
    rare = expected < SMALLEST_CELL
    cells = np.append(expected[~rare], expected[rare].sum())
    seen = np.append(observed[~rare], observed[rare].sum())
    kept = cells > 0
    statistic = float((((seen - cells)[kept]) ** 2 / cells[kept]).sum())
    limit = float(chi2.isf(FALSE_ALARM, kept.sum() - 1))
    return Fit(statistic, limit, int(observed[law.ravel() == 0].sum()))
