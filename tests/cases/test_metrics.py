"""The numbers of speculation against what the target was really given: observed, never made up from settings.

Cases 37, 38, 40 and 41 of the collected bug reports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from tests.scripted import ScriptedProposer, chain_law, drive, greedy, hashed_law, random_drafter, scripted_engine
from trtspec.decoding.draft import nodes_by_depth
from trtspec.decoding.proposers.ngram import NgramProposer
from trtspec.decoding.stats import SpeculationStats
from trtspec.errors import EngineFault
from trtspec.types import FinishReason, PassRecord, Request

LAW = hashed_law()


def test_matches_after_the_first_rejection_count_nowhere() -> None:
    """Drafted are the right token, a wrong one, and what would be right after it: one is accepted, two are emitted."""

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        chain = greedy(LAW, tokens, min(limit, 4))
        if len(chain) > 1:
            chain[1] = (chain[1] + 1) % 16
        return chain, list(range(-1, len(chain) - 1))

    engine, _ = scripted_engine(LAW, ScriptedProposer(draw))
    stats = drive(engine, [Request("a", (3, 1), max_tokens=21, max_draft_tokens=4)])["a"].stats
    assert (stats.spec_steps, stats.drafted, stats.accepted, stats.emitted) == (10, 4 * 8 + 3 + 1, 10, 20)
    assert stats.accepted_at == (10,) and stats.drafted_at == (10, 9, 9, 8)
    assert stats.per_position == (1.0, 0.0, 0.0, 0.0)


def test_drafted_is_what_was_verified_with_drafts_of_every_length() -> None:
    """Lookup finds nothing, little or much; the last drafts are cut by the budget."""
    law = chain_law(lambda prefix: (prefix[-3] + len(prefix) // 11) % 16 if len(prefix) > 2 else 5)
    engine, runner = scripted_engine(law, NgramProposer(4, shortest=2))
    result = drive(engine, [Request("a", (1, 2, 3, 1, 2), max_tokens=80, max_draft_tokens=4)])["a"]
    verified = [int(draft.counts[0]) for draft in runner.drafts]
    assert [item.drafted for item in result.passes] == verified
    assert {0, 4} < set(verified)
    assert result.stats.drafted == sum(verified)


def test_the_numbers_of_all_requests_add_up_to_those_of_the_engine_however_they_ended() -> None:
    """One is cancelled and one fails; what was verified for them before is told, too."""

    def law(prefix: Sequence[int]) -> Sequence[float]:
        return [math.nan] * 16 if prefix[0] == 15 and len(prefix) > 12 else LAW(prefix)

    engine, runner = scripted_engine(law, random_drafter(LAW, 3))
    requests = [Request(str(i), (i, 1), max_tokens=15 + i, max_draft_tokens=i % 4) for i in range(5)]
    requests += [Request("fails", (15, 1), 40, max_draft_tokens=3), Request("stops", (9,), 90, max_draft_tokens=3)]
    results = drive(engine, requests, join_every=1, cancel={"stops": 16})
    assert isinstance(results["fails"].error, EngineFault)
    end = results["stops"].finish
    assert end is not None and end.reason is FinishReason.CANCELLED
    seen: dict[str, list[PassRecord]] = {name: [] for name in results}
    for plan, draft in zip(runner.plans, runner.drafts, strict=True):
        for i, row in enumerate(plan.rows):
            nodes = nodes_by_depth(draft.parents[i, : int(draft.counts[i])].tolist())
            seen[row.request.request_id].append(PassRecord(plan.pass_index, nodes, prefill=row.prefill))
    for name, result in results.items():
        given, told = SpeculationStats.of(seen[name]), result.stats
        lost = int(name == "fails")  # the pass that failed has told what came before the failure, or nothing
        assert 0 <= given.decode_passes - told.decode_passes <= lost
        assert (given.drafted, given.verified_nodes) == (told.drafted, told.verified_nodes) or lost
    total = reduce(SpeculationStats.__add__, (result.stats for result in results.values()))
    total.check()
    assert total.prefill_tokens == len(requests) and total.verified_nodes > total.drafted > total.accepted > 0
    assert total.emitted + total.prefill_tokens == sum(len(result.ids) for result in results.values())
