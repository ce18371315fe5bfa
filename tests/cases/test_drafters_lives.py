"""Drafters through what happens to a text: prompts of every length in chunks, prefixes found again, rejected tokens.

Cases 2, 45, 46, 49 to 51, 54 and 58 of the collected bug reports. The scripted networks assert that what they hold is
what was committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from tests.drafters import heads, stateful, whole_model
from tests.scripted import Law, Result, Texts, drive, greedy, hashed_law, scripted_engine
from tests.views import view_row
from trtspec.decoding.drafting import Drafter
from trtspec.decoding.proposer import LAST_HIDDEN, Advance, BatchView, make_proposer
from trtspec.speculative import from_dict
from trtspec.types import Request

RIGHT, WRONG = (lru_cache(maxsize=None)(hashed_law(salt=salt)) for salt in (0, 1))
METHODS = pytest.mark.parametrize("method", ["draft_model", "eagle", "mtp", "medusa"])


def law(prefix: Sequence[int]) -> Sequence[float]:
    return RIGHT(tuple(prefix))


def wrong(prefix: Sequence[int]) -> Sequence[float]:
    return WRONG(tuple(prefix))


def drafter(method: str, drafting: Law, texts: Texts) -> Drafter:
    """Of EAGLE and MTP, what was fed last in a block that is found may have been fed with another next token."""
    if method == "medusa":
        return heads(drafting, texts, 3)
    if method == "draft_model":
        return whole_model(drafting, texts)
    return stateful(drafting, texts, 2 if method == "mtp" else 1, whole_prefix=False)


def run(
    method: str, requests: Sequence[Request], *, drafting: Law = law, join_every: int = 0, **more: int
) -> dict[str, Result]:
    texts = Texts()
    settings = from_dict({"method": method, "num_speculative_tokens": 3})
    engine, _ = scripted_engine(law, make_proposer(settings, drafter(method, drafting, texts)), texts=texts, **more)
    return drive(engine, requests, join_every=join_every)


@METHODS
def test_a_drafter_that_is_the_target_is_always_right_at_every_length_of_prompt_and_chunk(method: str) -> None:
    """Lengths around blocks of four and chunks of seven; the second of two MTP modules needs two tokens to begin."""
    for length in (1, 2, 3, 4, 5, 7, 8, 9, 13, 14, 15, 16, 17, 28):
        request = Request("a", tuple(i % 13 for i in range(length)), 13, max_draft_tokens=3)
        result = run(method, [request], pass_tokens=7)["a"]
        assert result.ids == greedy(law, request.prompt, 13)
        assert result.stats.acceptance_rate == 1.0, length
        assert result.stats.drafted == (8 if method == "mtp" and length == 1 else 9), length


@METHODS
def test_a_prompt_that_is_computed_in_chunks_drafts_nothing_before_its_last(method: str) -> None:
    """Beside others that draft; it emits its first token once, and the others go on as if alone."""
    long = Request("long", tuple(i % 16 for i in range(40)), 9, max_draft_tokens=3)
    others = [Request(str(i), (i, 3), 30, max_draft_tokens=3) for i in range(2)]
    results = run(method, [*others, long], join_every=2, pass_tokens=16)
    assert all(results[item.request_id].ids == greedy(law, item.prompt, item.max_tokens) for item in [*others, long])
    first = results["long"].passes[0]
    assert first.prefill and first.drafted == 0 and first.pass_index >= 4
    assert all(results[item.request_id].stats.acceptance_rate == 1.0 for item in others)


@METHODS
def test_a_prompt_that_is_found_again_is_drafted_as_well_as_the_first_time(method: str) -> None:
    """Three times in turn and three at once; at most the last block is computed again."""
    prompt = tuple((i * 7) % 16 for i in range(33))
    requests = [Request(str(i), prompt, 13, max_draft_tokens=3) for i in range(3)]
    in_turn, at_once = run(method, requests, join_every=12), run(method, requests)
    for result in (*in_turn.values(), *at_once.values()):
        assert result.ids == greedy(law, prompt, 13)
        assert result.stats.acceptance_rate == 1.0
    assert [in_turn[str(i)].cached_tokens for i in range(3)] == [0, 32, 32]


@METHODS
def test_what_was_drafted_and_rejected_is_found_by_nobody(method: str) -> None:
    """Eight prompts go on from a running text with what a wrong drafter proposed there, while it is proposed."""
    first = Request("first", (1, 2, 3), 40, max_draft_tokens=3)
    text = (1, 2, 3, *greedy(law, (1, 2, 3), 40))
    ends = {str(i): 6 + 3 * i for i in range(8)}
    prompts = {name: (*text[:end], *greedy(wrong, text[:end], 3), 5) for name, end in ends.items()}
    others = [Request(name, prompt, 10, max_draft_tokens=3) for name, prompt in prompts.items()]
    results = run(method, [first, *others], drafting=wrong, join_every=3, batch=9)
    assert results["first"].ids == list(text[3:]) and results["first"].stats.accepted < 10
    for name, prompt in prompts.items():
        assert results[name].ids == greedy(law, prompt, 10)
        assert results[name].cached_tokens in range(ends[name] // 4 * 4 + 1)
    assert results["7"].cached_tokens


class NumberedHeads:
    """Head h thinks 100 h most likely, then 100 h + 1, and so on: the lists of two heads share no token."""

    token_ids = None

    def forward(self, features: Tensor) -> Tensor:
        logits = torch.full((len(features), 3, 400), -50.0)
        for head in range(3):
            logits[:, head, 100 * (head + 1) : 100 * (head + 1) + 10] = -torch.arange(10.0)
        return logits


def test_a_node_of_rank_r_at_depth_h_is_what_head_h_ranks_so() -> None:
    tree = [[0], [1], [3], [0, 0], [0, 2], [3, 1], [0, 2, 0], [0, 2, 4], [3, 1, 2]]
    settings = from_dict({"method": "medusa", "num_speculative_tokens": 3, "tree": tree})
    proposer = make_proposer(settings, Drafter(heads=NumberedHeads(), features=(LAST_HIDDEN,)))
    row = view_row((1, 2, 3), 3, 9, sequence_id=4)
    advance = Advance(4, row.request, row.tokens, 1, 1, (), torch.zeros(1, 8))
    draft = proposer.propose(BatchView((row,), advances=(advance,)))
    paths: list[list[int]] = []
    for parent in draft.parents[0].tolist():
        paths.append([*(paths[parent] if parent >= 0 else []), len(paths)])
    tokens = draft.tokens[0].tolist()
    drafted = sorted([tokens[node] for node in path] for path in paths)
    assert drafted == sorted([100 * depth + rank for depth, rank in enumerate(path, 1)] for path in tree)
