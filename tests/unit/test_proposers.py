"""What proposers ask of the engine, hand on to each other, and forget."""

from __future__ import annotations

import pytest
from torch import Tensor

from tests.cases.test_proposers import LAW, METHODS, config, drafter, requests
from tests.drafters import heads
from tests.scripted import ScriptedProposer, Texts, drive, scripted_engine
from tests.views import view_row
from trtspec.decoding.draft import ROOT
from trtspec.decoding.drafting import Drafter
from trtspec.decoding.proposer import LAST_HIDDEN, BatchView, Needs, make_proposer
from trtspec.decoding.proposers.ngram_first import NgramFirst
from trtspec.speculative import from_dict
from trtspec.types import Request, SamplingParams


@pytest.mark.parametrize("method", METHODS)
def test_needs_tell_trees_and_how_far_modules_stay_behind(method: str) -> None:
    for shape in ("chain", "tree"):
        needs = make_proposer(config(method, shape), drafter(method, LAW, Texts())).needs
        assert needs.tree == (shape == "tree")
        assert needs.behind == (2 if method == "mtp" else 0), "modules beyond the first"
        assert needs.caches == (method != "medusa")


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_kept_of_sequences_that_ended(method: str) -> None:
    texts = Texts()
    proposer = make_proposer(config(method, "chain"), drafter(method, LAW, texts))
    engine, _ = scripted_engine(LAW, proposer, texts=texts)
    drive(engine, requests(3))
    drive(engine, [Request("last", (1, 2, 3), 8, max_draft_tokens=3)])
    for name, value in vars(proposer).items():
        for kept in value if isinstance(value, list) else [value]:
            assert not isinstance(kept, dict) or len(kept) <= 1, f"{name} still knows {sorted(kept)}"


def test_medusas_heads_know_the_noise_of_the_places_they_guess() -> None:
    """Where the law is the same everywhere, guesses differ by noise alone, and all are right."""
    texts = Texts()

    def law(prefix: object) -> list[float]:
        return [0.1 * token for token in range(16)]

    engine, _ = scripted_engine(law, make_proposer(config("medusa", "chain"), heads(law, texts, 3)), texts=texts)
    request = Request("a", (1, 2), 41, SamplingParams(1.0), seed=4, max_draft_tokens=3)
    assert drive(engine, [request])["a"].stats.acceptance_rate == 1.0


def test_the_first_of_several_modules_reads_the_targets_features() -> None:
    def refuse(features: Tensor) -> Tensor:
        raise AssertionError("another module read the features")

    texts = Texts()
    network = drafter("mtp", LAW, texts)
    for module in network.modules[1:]:
        module.states = refuse  # type: ignore[method-assign]
    engine, _ = scripted_engine(LAW, make_proposer(config("mtp", "chain"), network), texts=texts)
    assert drive(engine, requests(1))["0"].stats.drafted > 0


def test_rows_that_lookup_continues_want_no_draft_of_the_drafter() -> None:
    """One node found is a match, too."""
    found = ScriptedProposer(lambda tokens, depth: ([7], [ROOT]) if tokens[-1] == 5 else ([], []))
    drawn = ScriptedProposer(lambda tokens, depth: ([8, 9], [ROOT, 0]))
    view = BatchView((view_row([1, 5], 3, sequence_id=0), view_row([1, 6], 3, sequence_id=1)))
    draft = NgramFirst(found, drawn).propose(view)
    assert [draft.tokens[row, :count].tolist() for row, count in enumerate(draft.counts.tolist())] == [[7], [8, 9]]
    (seen,) = drawn.views
    assert [(row.max_depth, row.max_nodes) for row in seen.rows] == [(0, 0), (3, 3)]


def test_plain_decoding_asks_nothing_of_the_engine_and_lookup_asks_for_room_alone() -> None:
    assert make_proposer(from_dict({"method": "none"}), Drafter()).needs == Needs(0)
    needs = make_proposer(config("ngram", "chain"), Drafter()).needs
    assert (needs.max_nodes, needs.tree, needs.features, needs.caches, needs.behind) == (3, False, (), False, 0)
    assert LAST_HIDDEN not in range(1000), "a layer has its number"
