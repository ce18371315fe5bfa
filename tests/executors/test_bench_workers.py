"""The benchmark's processes around a real engine: a worker that measures, one that fails, and the profiled one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.bench import profile_pass
from scripts.bench.peers.jobs import Job, Mode, Work
from scripts.bench.peers.measure import WorkerFailed, work
from scripts.bench.profiled_worker import PHASES

PROMPTS = [[5, 6, 7, 5, 6, 7], [9, 8, 7]]


def job(adapter: str, model: Path) -> Job:
    return Job(adapter, str(model), {}, Mode.SPECULATION, 2, 1, PROMPTS, PROMPTS, 4, [1000])


def test_a_worker_counts_the_tokens_of_its_engine(engine_folder: Path, tmp_path: Path) -> None:
    answer = work(job("trtspec", engine_folder), Path(sys.executable), tmp_path / "log")
    [reading] = answer.readings
    assert reading.tokens == 8  # no id ends a text here
    assert reading.seconds > 0 and answer.load_seconds > 0
    assert "torch" in answer.versions


def test_a_worker_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="ended with 1: .*No module named .*nobody"):
        work(job("nobody", tmp_path), Path(sys.executable), tmp_path / "log")


async def test_the_profile_accounts_for_the_time_of_every_pass(engine_folder: Path) -> None:
    load = await profile_pass.run(engine_folder, Work(PROMPTS, 4), [1000], 2, speculation=True)
    profile = load.profile
    assert load.tokens == 8
    assert 1 <= profile.passes <= 8
    assert set(profile.seconds) == set(PHASES)
    assert all(profile.seconds[name] > 0 for name in PHASES)
    assert 0 <= profile_pass.rest(profile) < profile.span
