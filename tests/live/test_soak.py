"""Twenty seconds of what `python -m scripts.soak` does for ten minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.soak.__main__ import soak
from scripts.soak.counting import Counting, Seen, Told, disagreements
from scripts.soak.lives import LIVES

SECONDS = 20.0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nothing_is_left_after_cancels_deadlines_kills_and_slow_readers(engine: Path) -> None:
    outcome = await soak(engine, SECONDS, seed=3, in_process=True)
    assert outcome.faults == []
    assert {seen.kind for seen in outcome.requests.values()} >= {life.__name__ for life in LIVES}
    assert outcome.counting.ended_calls > 100


def test_counts_that_differ_are_told() -> None:
    counting = Counting(arrived_calls=1, requests={"unknown": Told()})
    [ended, lost, unknown] = disagreements({"lost": Seen("reads_all", 3, 3, accepted=True)}, counting)
    assert ended == "1 requests arrived and 0 ended"
    assert lost == "lost (reads_all) was accepted, but is in no count"
    assert unknown == "1 requests were counted that nobody sent"
