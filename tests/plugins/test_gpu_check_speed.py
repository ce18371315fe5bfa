"""What `scripts/gpu-check --kernels` measures: loads, what is read, shares, and what is left out with its reason."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plugins.eager_verification import chain_rejection
from plugins.specs import KERNELS
from scripts.gpu_check.kernels import speeds, timing, tuning
from scripts.gpu_check.kernels.loads import FULL, Load, Pool
from scripts.gpu_check.kernels.operations import OPERATIONS
from scripts.gpu_check.kernels.speeds import Means, Skipped, Speed
from scripts.gpu_check.kernels.timing import FEWEST, GraphTimer, HostTimer
from tests.plugins.doubles import Clock

CPU = torch.device("cpu")
LOAD = Load(2, 2, 160)


class TestLoads:
    def test_calls_take_turns_on_different_logits_beyond_the_cache(self) -> None:
        pool = Pool.on(CPU, most_bytes=4000, cached=1000, seed=1)
        turns = pool.turns([(3, 20), (2, 5)])
        assert len(turns) == 8 and sum(part.nbytes for turn in turns for part in turn) >= 1000
        places = {part.data_ptr() for turn in turns for part in turn}
        ends = sorted((part.data_ptr(), part.data_ptr() + part.nbytes) for turn in turns for part in turn)
        assert len(places) == 16 and all(end <= start for (_, end), (start, _) in zip(ends, ends[1:], strict=False))
        assert [list(part.shape) for part in turns[3]] == [[3, 20], [2, 5]]
        assert len(pool.turns([(2000,)])) == 1
        assert len(Pool.on(CPU, 2, 9000, seed=1).turns([(1,)])) == 1000

    def test_a_pool_has_room_for_the_largest_load_and_a_turn(self) -> None:
        for operation in OPERATIONS:
            most = operation.bytes_read(LOAD)
            prepared = operation.prepare(LOAD, Pool.on(CPU, most, 3 * most, seed=1))
            assert len(prepared.arguments) == len(prepared.torch_calls) >= 3
            assert 0 < prepared.reads <= most

    def test_all_shapes_are_measured(self) -> None:
        assert {(load.batch, load.nodes, load.vocabulary) for load in FULL} == {
            (b, n, v) for b in (1, 8, 64) for n in (4, 16, 64) for v in (32_000, 128_256)
        }
        assert FULL[0].rows == 64 * 65

    def test_what_rejection_reads_is_counted_where_chains_end(self) -> None:
        operation = next(item for item in OPERATIONS if item.name == "chain_rejection")
        prepared = operation.prepare(LOAD, Pool.on(CPU, operation.bytes_read(LOAD), 0, seed=1))
        accepted = list(prepared.arguments[0].launches())[1].outputs[0]
        ends = sum(1 if int(count) == LOAD.nodes else 2 for count in accepted)
        assert prepared.reads == (2 * LOAD.batch * LOAD.nodes + ends) * LOAD.vocabulary * 2

    def test_kernels_and_pytorch_come_to_the_same(self) -> None:
        """What does not draw."""
        load = Load(1, 0, 160)
        found = {
            item.name: item.prepare(load, Pool.on(CPU, item.bytes_read(load), 0, seed=1)) for item in OPERATIONS[:3]
        }
        greedy = found["choose_token, greedy"]
        ids, told, wanted = greedy.torch_calls[0]()  # type: ignore[misc]
        ours = greedy.arguments[0].run()
        assert ours[0].tolist() == ids.squeeze(1).tolist()
        torch.testing.assert_close(torch.stack(ours[1:]), torch.cat([told, wanted], dim=1).t())
        top = found["top_logits"].arguments[0].run()[0]
        values, _, normalisers = found["top_logits"].torch_calls[0]()  # type: ignore[misc]
        assert top[:, :64].tolist() == values.tolist()
        torch.testing.assert_close(top[:, -1], normalisers)

    def test_pytorchs_rejection_accepts_what_the_twin_does(self) -> None:
        operation, load = OPERATIONS[-1], Load(16, 3, 160)
        prepared = operation.prepare(load, Pool.on(CPU, operation.bytes_read(load), 0, seed=1))
        accepted = chain_rejection(**prepared.arguments[0].arrays, vocabulary=160).accepted.tolist()
        assert accepted == prepared.torch_calls[0]()[0].tolist()  # type: ignore[index]
        assert set(accepted) == {0, 1, 2, 3}, "some nodes stay after one that does not"


def means(timer: Any, left: float = 1.0) -> Means:
    return Means(timer, 0.0, lambda: left)


def measured(timer: Any, left: float = 1.0, loads: Sequence[Load] = (LOAD,)) -> list[Speed | Skipped]:
    pool = Pool.on(CPU, OPERATIONS[2].bytes_read(LOAD), 0, seed=1)
    return list(speeds.measure(loads, [OPERATIONS[2]], pool, means(timer, left)))


class TestSpeeds:
    def test_the_fastest_sweep_is_the_measure_and_is_measured_once(self) -> None:
        timer = Clock(4.0, 3.0, 2.0, 9.0, 8.0, 4.0, 8.0)
        first, second = measured(timer, loads=[LOAD, LOAD])
        assert isinstance(first, Speed) and isinstance(second, Speed)
        assert (first.seconds, first.sweep_seconds, first.torch_seconds) == (4.0, 2.0, 8.0)
        assert (first.share, first.met, first.swept_by) == (0.5, False, "Triton, blocks of 16 KiB")
        assert (second.seconds, second.sweep_seconds, first.reads) == (4.0, 2.0, LOAD.rows * 160 * 2)

    def test_sweeps_read_every_word(self) -> None:
        words = torch.arange(9001, dtype=torch.int32)
        for name in ("Triton, blocks of 8 KiB", "Triton, blocks of 16 KiB"):
            assert int(speeds._WAYS[name](words).sum()) == 9000 * 9001 // 2
        halves = torch.arange(9001) / 2.0
        assert float(speeds._WAYS["torch.sum of float32"](halves.view(torch.int32))) == float(halves.double().sum())

    def test_what_does_not_fit_or_comes_too_late_is_skipped_with_its_reason(self) -> None:
        (large,) = measured(Clock(), loads=[Load(99, 2, 160)])
        assert isinstance(large, Skipped) and "it reads 95,040 bytes; the pool" in large.reason
        (late,) = measured(Clock(), left=0.0)
        assert isinstance(late, Skipped) and late.reason == "no time was left"
        (full,) = measured(Clock(torch.OutOfMemoryError("x")))
        assert isinstance(full, Skipped) and "memory is too small" in full.reason
        assert speeds.run_everywhere([large, late, full]).passed

    def test_kernels_that_break_are_skipped_and_fail_the_check_while_others_are_measured(self) -> None:
        broken, whole = measured(Clock(ValueError("no\nkernel"), 4.0, 1.0, 1.0, 1.0, 1.0), loads=[LOAD, LOAD])
        assert isinstance(broken, Skipped) and broken.reason == "ValueError: no" and isinstance(whole, Speed)
        check = speeds.run_everywhere([broken, whole])
        assert not check.passed and check.detail == "top_logits, B 2, N 2, V 160: ValueError: no"
        assert speeds.run_everywhere([whole]).detail == "1 measured, 0 left out"

    def test_where_pytorch_cannot_the_kernels_are_measured_all_the_same(self) -> None:
        (only,) = measured(Clock(4.0, 1.0, 1.0, 1.0, RuntimeError("not in a graph\nat all")))
        assert isinstance(only, Speed) and only.torch_seconds is None and only.torch_trouble == "not in a graph"

    def test_other_constants_are_those_that_run(self) -> None:
        choice = tuning.Choice("choose_token_parts", {"SPLIT": 128, "BLOCK": 64}, 2)
        assert (choice.spec().constants, choice.spec().num_warps) == ({"BLOCK": 64, "SPLIT": 128}, 2)
        operation = OPERATIONS[0]
        pool = Pool.on(CPU, operation.bytes_read(LOAD), 0, seed=1)
        prepared = operation.prepare(LOAD, pool)
        changed = prepared.kernel_calls({choice.kernel: choice.spec()})[0].__self__  # type: ignore[attr-defined]
        first = next(changed.launches())
        assert first.outputs[0].shape == (6, 2), "160 tokens in two splits"
        assert changed.run()[0].equal(prepared.kernel_calls()[0]()[0])  # type: ignore[index]

    def test_tuning_goes_on_where_a_choice_does_not_compile(self) -> None:
        choices = {"top_logits": [tuning.Choice("top_logits_parts", {"BLOCK": block}, 4) for block in (64, 128, 256)]}
        timer = Clock(2.0, 1.0, ValueError("too large"), 4.0)
        pool = Pool.on(CPU, OPERATIONS[2].bytes_read(LOAD), 0, seed=1)
        found = list(tuning.tune([LOAD], OPERATIONS, choices, pool, means(timer)))
        assert [item.seconds if isinstance(item, tuning.Tuned) else item.reason for item in found] == [
            1.0,
            "top_logits_parts: BLOCK 128, 4 warps: too large",
            4.0,
        ]

    def test_choices_are_of_kernels_that_are_measured(self) -> None:
        names = {operation.name for operation in OPERATIONS}
        assert set(tuning.CHOICES) <= names
        for choice in (item for choices in tuning.CHOICES.values() for item in choices):
            assert set(choice.constants) <= set(KERNELS[choice.kernel].constants)


def test_a_median_of_some_repeats_is_taken_whatever_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 2.0, 10.0, 14.0, 20.0, 28.0, 30.0, 32.0, 40.0, 46.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    called: list[int] = []
    assert HostTimer()([lambda: called.append(1), lambda: called.append(2)], 0.0) == 2.0
    assert called == [1, *[1, 2] * FEWEST]


class FakeEvent:
    """Says when it is recorded and waited for; the device has come to it already where it is told to be so."""

    def __init__(self, happened: list[str], times: Iterator[float], idle: Iterator[bool]) -> None:
        self._happened, self._times, self._idle = happened, times, idle

    def record(self) -> None:
        self._happened.append("event")

    def query(self) -> bool:
        self._happened.append("query")
        return next(self._idle, False)

    def synchronize(self) -> None:
        self._happened.append("wait")

    def elapsed_time(self, end: object) -> float:
        assert isinstance(end, FakeEvent) and end is not self
        return next(self._times)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Stands for the calls of CUDA that a timer makes; the list that is returned says what happened, in order."""

    def stand(times: Sequence[float], idle: Sequence[bool]) -> list[str]:
        happened: list[str] = []
        graph = SimpleNamespace(replay=lambda: happened.append("replay"))
        left = iter(times), iter(idle)

        @contextlib.contextmanager
        def recording(given: object) -> Iterator[None]:
            assert given is graph
            happened.append("record")
            yield
            happened.append("recorded")

        fakes = {
            "CUDAGraph": lambda: graph,
            "graph": recording,
            "synchronize": lambda: None,
            "Event": lambda enable_timing: FakeEvent(happened, *left),
            "_sleep": lambda cycles: happened.append(f"sleep {cycles}"),
        }
        for name, value in fakes.items():
            monkeypatch.setattr(torch.cuda, name, value)
        return happened

    return stand


def timed(sleep: int) -> list[str]:
    """One replay between two events: all is queued while the device sleeps, before anybody waits."""
    return [f"sleep {sleep}", "event", "replay", "event", "query", "wait"]


def test_on_a_device_all_calls_are_one_graph(device: Callable[..., list[str]]) -> None:
    """Two calls are made to warm up, all three are recorded, and each replay is timed by events: 6 to 30 ms.

    The second one found the device idle, which waits twice as long from then on; its time does not count.
    """
    happened = device([6.0, 9.0, 12.0, 30.0, 30.0], [False, True])
    calls = [partial(happened.append, name) for name in "abc"]
    assert GraphTimer()(calls, 0.0) == pytest.approx(0.012 / 3)
    first = timing._FEWEST_CYCLES
    replays = [*timed(first) * 2, *timed(2 * first) * 4]
    assert happened == [*"ab", "record", *"abc", "recorded", "replay", *replays]


def test_a_device_that_the_host_never_gets_ahead_of_is_not_timed(device: Callable[..., list[str]]) -> None:
    """CUDA_LAUNCH_BLOCKING makes one."""
    device([], [True] * 99)
    with pytest.raises(RuntimeError, match="not queued ahead of the device: it waits 1,073,741,824 cycles"):
        GraphTimer()([lambda: None], 0.0)
