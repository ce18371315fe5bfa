"""The kernels for rejection sampling along chains, against the oracle, decision by decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plugins import launch_verification
from plugins.contract import KernelSpec
from plugins.launch import launch
from plugins.verification_specs import CHAIN_REJECTION, CHAIN_STATISTICS, MOST_NODES
from scripts.gpu_check.kernels.chains import MARGIN, Chains, Shape, clear, random_chains

HALF = [torch.float16, torch.bfloat16]


def agree(chains: Chains) -> int:
    """Compares the rows that rounding cannot turn; how many they are."""
    launched, expected = chains.launched(), chains.eager()
    rows = clear(chains)
    for name, ours, theirs in zip(expected._fields, launched, expected, strict=True):
        assert ours.dtype == torch.int32
        assert ours[rows].tolist() == theirs[rows].tolist(), name
    return int(rows.sum())


@settings(max_examples=20, deadline=None)
@given(
    st.builds(Shape, st.integers(1, 3), st.integers(0, 4), st.integers(2, 40), st.integers(0, 5)),
    st.integers(0, 2**32),
    st.sampled_from([torch.float32, *HALF]),
)
def test_random_chains(shape: Shape, seed: int, dtype: torch.dtype) -> None:
    agree(random_chains(shape, seed, dtype))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (Shape(12, 5, 128), torch.float16),
        (Shape(12, 5, 128, padding=64), torch.bfloat16),
        (Shape(2, 2, 32000, padding=768), torch.float32),
        pytest.param(Shape(8, 4, 32000), torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(Shape(2, 2, 151_936), torch.float32, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_vocabularies(shape: Shape, dtype: torch.dtype) -> None:
    chains = random_chains(shape, seed=3, dtype=dtype)
    assert agree(chains) >= shape.rows * 0.9


def test_every_fate_of_a_chain() -> None:
    """Of sampled and certain rows, each count, and each length that is accepted."""
    chains = random_chains(Shape(30, 2, 7, padding=1), seed=44)
    fates = zip(chains.eager().accepted.tolist(), chains.counts.tolist(), chains.certain.tolist(), strict=True)
    assert len(set(fates)) == 12
    assert agree(chains) == 30


def cut(most: int) -> list[KernelSpec]:
    """The kernels for parts of at most so many tokens, merged two by two."""
    sizes = {"BLOCK": most, "PARTS": 2}
    return [
        replace(spec, constants={name: sizes.get(name, size) for name, size in spec.constants.items()})
        for spec in CHAIN_REJECTION
    ]


def everything_left(chains: Chains, specs: Sequence[KernelSpec]) -> dict[str, Tensor]:
    """All outputs of some launches, by name."""
    known = {name: value for name, value in chains._asdict().items() if name != "vocabulary"}
    for spec in specs:
        numbers = {"vocabulary": chains.vocabulary} if "vocabulary" in spec.scalars else {}
        outputs = launch(spec, *(known[item.name] for item in spec.inputs), **numbers)
        known |= {item.name: output for item, output in zip(spec.outputs, outputs, strict=True)}
    return {item.name: known[item.name] for spec in specs for item in spec.outputs}


def test_parts_of_a_vocabulary_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven of them."""
    chains = random_chains(Shape(5, 2, 100, padding=4), seed=5)
    whole = chains.launched()
    monkeypatch.setattr(launch_verification, "CHAIN_REJECTION", cut(16))
    for ours, theirs in zip(chains.launched(), whole, strict=True):
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("specs", [CHAIN_REJECTION[:2], cut(16)[:2]], ids=["one part", "seven parts"])
def test_statistics_where_chains_end(specs: Sequence[KernelSpec]) -> None:
    """The log of a sum of exponentials, of what is read again; what is not has the sum 0."""
    chains = random_chains(Shape(9, 2, 100), seed=8)
    left = everything_left(chains, specs)
    counted = chains.counts.tolist(), chains.certain.tolist()
    for row, (end, count, certain) in enumerate(zip(left["accepted"].tolist(), *counted, strict=True)):
        for side, scores, read in (
            ("target", chains.target, end < count),
            ("draft", chains.draft, end < count and not certain),
        ):
            best, mass = left[f"{side}_best"][row], left[f"{side}_mass"][row]
            expected = scores[row, end].double().exp().sum().item() if read else 0.0
            assert (best.double().exp() * mass).item() == pytest.approx(expected, rel=MARGIN), (row, side)
    assert 0 < (left["draft_mass"] > 0).sum() < (left["target_mass"] > 0).sum() < 9


def test_what_need_not_be_read_is_not() -> None:
    """Scores that would do no harm: of certain rows' drafts, and beyond a count."""
    scores = torch.zeros(3, 3, 8)
    counts, certain = torch.tensor([2, 1, 2]).int(), torch.tensor([1, 0, 0]).int()
    parts = launch(CHAIN_STATISTICS, scores, scores[:, 1:].clone(), counts, certain, vocabulary=7)
    _, target_sum, _, draft_sum = (part.squeeze(2).tolist() for part in parts)
    assert target_sum == [[7, 7], [7, 0], [7, 7]]
    assert draft_sum == [[0, 0], [7, 0], [7, 7]]


def test_padding_of_a_certain_row_forbids_nothing() -> None:
    """The token beyond the count is the only likely one."""
    chains = one_chain([[0.0, 50.0, 0.0]] * 2, [[0.0, 0.0, 0.0]], [1], draw=0.5)
    one, none = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    outcome = chains._replace(counts=none, certain=one).launched()
    assert (outcome.accepted.item(), outcome.token.item()) == (0, 1)


def test_launched_twice_the_same_bits_are_left() -> None:
    chains = random_chains(Shape(3, 2, 5000), seed=9)
    first, second = (everything_left(chains, CHAIN_REJECTION) for _ in range(2))
    for name, output in first.items():
        assert torch.equal(output, second[name]), name


def one_chain(target: list[list[float]], draft: list[list[float]], tokens: list[int], draw: float) -> Chains:
    """A row whose accept draws are all the same, of laws given by their scores."""
    return Chains(
        *(torch.tensor([target]), torch.tensor([draft]).reshape(1, len(tokens), len(target[0]))),
        torch.tensor([tokens], dtype=torch.int32),
        *(torch.tensor([len(tokens)], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)),
        torch.full((1, len(tokens)), draw),
        *(torch.tensor([2**63 - 1]), torch.tensor([17], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)),
        len(target[0]),
    )


@pytest.mark.parametrize(("draw", "accepted"), [(0.49, 1), (0.51, 0)])
@pytest.mark.parametrize("certain", [False, True])
def test_a_node_stays_with_p_over_q(draw: float, accepted: int, certain: bool) -> None:
    """Sampled: p = .45 and q = .9. Certain: p = .5, whatever the drafter's scores are."""
    law = torch.tensor([0.5, 0.25, 0.25] if certain else [0.45, 0.4, 0.15]).log().tolist()
    q = [torch.nan] * 3 if certain else torch.tensor([0.9, 0.05, 0.05]).log().tolist()
    chains = one_chain([law, law], [q], [0], draw)._replace(certain=torch.tensor([int(certain)], dtype=torch.int32))
    outcome = chains.launched()
    assert outcome.accepted.tolist() == [accepted]
    assert accepted or outcome.token.item() in (1, 2)
    assert outcome.token.tolist() == chains.eager().token.tolist()


def test_a_draft_from_the_targets_own_law_stays_even_at_a_draw_rounded_to_one() -> None:
    scores = random_chains(Shape(1, 6, 50), seed=2).target[0].nan_to_num(0.0)
    tokens = scores[:6].argmax(dim=1).tolist()
    chains = one_chain(scores.tolist(), scores[:6].tolist(), tokens, draw=1.0)
    assert chains.launched().accepted.tolist() == chains.eager().accepted.tolist() == [6]


def test_a_residual_that_is_empty_by_rounding_leaves_the_targets_law() -> None:
    """Both laws give token 0 the float32 1, and token 1 less and more of what is left."""
    chains = one_chain([[0.0, -20.0], [0.0, 0.0]], [[0.0, -18.0]], [1], draw=0.9)
    outcome = chains.launched()
    assert (outcome.accepted.item(), outcome.token.item()) == (0, 0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("certain", [0, 1])
@pytest.mark.parametrize("column", [0, 2], ids=["at the token", "elsewhere"])
def test_a_target_row_without_a_law_ends_the_chain_without_a_token(bad: float, certain: int, column: int) -> None:
    """After one node that stays; nodes behind it do not matter."""
    sure = [0.0, -torch.inf, -torch.inf]
    target = [sure, [0.0, 0.0, 0.0], sure, sure]
    target[1][column] = bad
    chains = one_chain(target, [sure, sure, sure], [0, 0, 0], draw=0.5)
    outcome = chains._replace(certain=torch.tensor([certain], dtype=torch.int32)).launched()
    assert (outcome.accepted.item(), outcome.token.item()) == (1, -1)


@pytest.mark.parametrize("row", [[torch.nan, 0.0], [-torch.inf, -torch.inf]], ids=["NaN", "nothing allowed"])
def test_no_token_follows_a_last_node_without_a_law(row: list[float]) -> None:
    chains = one_chain([[0.0, 1.0], row], [[0.0, 1.0]], [1], draw=0.5)
    assert (chains.launched().accepted.item(), chains.launched().token.item()) == (1, -1)


def test_a_draft_row_without_a_law_takes_nothing_from_the_target() -> None:
    chains = one_chain([[0.0, 1.0], [0.0, -torch.inf]], [[torch.nan, 1.0]], [0], draw=0.9999)
    assert (chains.launched().accepted.item(), chains.launched().token.item()) == (1, 0)
    impossible = one_chain([[-torch.inf, 1.0], [0.0, 0.0]], [[torch.nan, 1.0]], [0], draw=0.5)
    assert (impossible.launched().accepted.item(), impossible.launched().token.item()) == (0, 1)


def test_nothing_drafted_draws_what_plain_decoding_draws() -> None:
    chains = random_chains(Shape(6, 0, 30), seed=4)
    assert agree(chains) == 6
    assert chains.launched().accepted.tolist() == [0] * 6


def test_arguments_that_do_not_fit_are_refused() -> None:
    chains = random_chains(Shape(1, 1, 4), seed=0)
    with pytest.raises(ValueError, match="draft: scores are torch.float16, the target's torch.float32"):
        chains._replace(draft=chains.draft.half()).launched()
    with pytest.raises(ValueError, match="vocabulary: 5 tokens, and scores of 4"):
        chains._replace(vocabulary=5).launched()
    with pytest.raises(ValueError, match="65 nodes a row"):
        random_chains(Shape(1, MOST_NODES + 1, 4), seed=0).launched()
