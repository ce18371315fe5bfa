"""The numbers of speculation on small records worked out by hand, and their invariants on any."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtspec.decoding.stats import SpeculationStats, Tally
from trtspec.types import PassRecord


def chain(drafted: int, accepted: int, emitted: int | None = None, cut: bool = False) -> PassRecord:
    return PassRecord(0, (1,) * drafted, accepted, accepted + 1 if emitted is None else emitted, cut=cut)


RECORDS = [chain(4, 4), chain(4, 2), chain(1, 1, emitted=1, cut=True)]


def test_rate_and_lengths_leave_the_bonus_out() -> None:
    stats = SpeculationStats.of(RECORDS)
    assert stats.acceptance_rate == 7 / 9
    assert stats.mean_accepted_length == 7 / 3
    assert stats.acceptance_length == 1 + 7 / 3
    assert stats.tokens_per_pass == 9 / 3
    assert stats.rejection_frequency == 1 / 3
    assert stats.histogram == (0, 1, 1, 0, 1)
    assert stats.drafted_at == (3, 2, 2, 2)
    assert stats.accepted_at == (3, 2, 1, 1)
    assert stats.per_position == (1.0, 1.0, 0.5, 0.5)


def test_unknown_is_absent() -> None:
    stats = SpeculationStats.of([PassRecord(0, prefill=True), PassRecord(1)])
    assert (stats.prefill_tokens, stats.decode_passes, stats.spec_steps) == (1, 1, 0)
    assert stats.acceptance_rate is stats.acceptance_length is stats.rejection_frequency is stats.node_yield is None
    assert stats.tokens_per_pass == 1.0
    assert SpeculationStats().tokens_per_pass is None


def test_a_tree_has_a_rate_by_depth_and_a_yield_by_nodes() -> None:
    stats = SpeculationStats.of([PassRecord(0, (3, 2), accepted=2, emitted=3)])
    assert (stats.drafted, stats.verified_nodes) == (2, 5)
    assert (stats.acceptance_rate, stats.node_yield) == (1.0, 0.4)


def test_what_comes_after_a_cut_counts_nowhere() -> None:
    """Eight drafted, five accepted, and the output ends at the third emitted token."""
    record = chain(8, 5).cut_to(3)
    assert (record.drafted, record.accepted, record.emitted, record.cut) == (3, 3, 3, True)
    assert SpeculationStats.of([record]).rejected_steps == 0


def test_a_cut_at_the_bonus_keeps_the_accepted_run() -> None:
    record = chain(8, 2).cut_to(3)
    assert (record.drafted, record.accepted, record.emitted) == (3, 2, 3)


def test_a_cut_of_a_tree_drops_its_deeper_nodes() -> None:
    record = PassRecord(0, (4, 3, 2), accepted=3, emitted=4).cut_to(1)
    assert (record.drafted, record.verified_nodes, record.accepted) == (1, 4, 1)


@st.composite
def records(draw: st.DrawFn) -> PassRecord:
    depth = draw(st.integers(0, 6))
    nodes = tuple(draw(st.integers(1, 4)) for _ in range(depth))
    accepted = draw(st.integers(0, depth))
    record = PassRecord(draw(st.integers(0, 99)), nodes, accepted, accepted + 1)
    return record.cut_to(draw(st.integers(1, accepted + 1))) if draw(st.booleans()) else record


@given(st.lists(records()), st.lists(records()))
def test_totals_add_up_and_obey_the_invariants(first: list[PassRecord], second: list[PassRecord]) -> None:
    total = SpeculationStats.of(first + second)
    total.check()
    assert SpeculationStats.of(first) + SpeculationStats.of(second) == total
    assert SpeculationStats.of(second) + SpeculationStats.of(first) == total


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12), st.integers(0, 12))
def test_a_tally_is_the_sum_of_what_it_counted(steps: list[tuple[int, int]], at: int) -> None:
    records = [chain(max(pair), min(pair)) for pair in steps] + [PassRecord(0, prefill=True)]
    tally = Tally()
    tally.count(records[:at])
    between = tally.stats
    tally.count(records[at:])
    assert between == SpeculationStats.of(records[:at])
    assert tally.stats == between + SpeculationStats.of(records[at:])
    assert tally.stats == sum((SpeculationStats.of([record]) for record in records), SpeculationStats())
    tally.stats.check()
