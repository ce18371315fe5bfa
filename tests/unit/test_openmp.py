"""What the user decided about waiting threads stays; otherwise they spin only shortly."""

from __future__ import annotations

import pytest

from trtspec.openmp import considerate


def test_threads_spin_shortly_by_default() -> None:
    assert considerate({"HOME": "/root"}) == {"HOME": "/root", "GOMP_SPINCOUNT": "10000"}


@pytest.mark.parametrize("decided", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_a_users_decision_stays(decided: dict[str, str]) -> None:
    assert considerate(decided) == decided
