"""A sampled run with penalties, truncation and a drafted tree follows the law written down by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.law.chi_square import fit
from tests.plans import decode_row, plan_of
from trtspec.decoding.choosing import choose_all
from trtspec.decoding.draft import Draft
from trtspec.decoding.edits import Editor
from trtspec.decoding.sampling import process
from trtspec.decoding.verify import Outcome, walk_tree
from trtspec.types import Request, SamplingParams

VOCABULARY = 6
DRAWS = 4_000
PROMPT = (0, 1)
TARGET = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(9)) * 1.5
"""Logits after each token."""
TREE = ([2, 4, 2, 5], [-1, -1, 0, 1])
SAMPLING = SamplingParams(
    temperature=0.8,
    top_p=0.95,
    repetition_penalty=1.4,
    presence_penalty=0.5,
    frequency_penalty=0.8,
    logit_bias=((3, 0.7),),
    bad_words=((2, 5), (1, 0)),
)


def law(output: Sequence[int], sampling: SamplingParams) -> NDArray[np.float64]:
    """The law of the token after the prompt and an output."""
    return edited_law(TARGET[[*PROMPT, *output][-1]].tolist(), PROMPT, output, sampling)


def edited_law(
    logits: list[float], prompt: Sequence[int], output: Sequence[int], sampling: SamplingParams
) -> NDArray[np.float64]:
    """The law that logits come to after a prompt and an output, by the formulas of the penalties."""
    history = [*prompt, *output]
    for token, value in sampling.logit_bias:
        logits[token] += value
    for token in set(history):
        logits[token] *= sampling.repetition_penalty if logits[token] < 0 else 1 / sampling.repetition_penalty
        logits[token] -= sampling.frequency_penalty * output.count(token)
        logits[token] -= sampling.presence_penalty * (token in output)
    for word in sampling.bad_words:
        if tuple(history[-len(word) + 1 :]) == word[:-1]:
            logits[word[-1]] = -np.inf
    return process(torch.tensor([logits]), [sampling])[0].double().softmax(dim=0).numpy()


def choices(outputs: Sequence[Sequence[int]], seeds: Sequence[int], draft: Draft) -> Outcome:
    """A pass over many sequences of different seeds."""
    requests = [Request(str(seed), PROMPT, 9, SAMPLING, seed=seed) for seed in seeds]
    pairs = enumerate(zip(requests, outputs, strict=True))
    plan = plan_of(*(decode_row(request, output, sequence_id=i) for i, (request, output) in pairs))
    last = torch.tensor([row.history[-1] for row in plan.rows]).unsqueeze(1)
    real = torch.arange(draft.width + 1) <= draft.counts.unsqueeze(1)
    logits = TARGET[torch.cat([last, draft.tokens], dim=1)[real]]
    return walk_tree(draft, choose_all(plan, draft, logits, Editor()))


def pair_counts(draft: Draft) -> NDArray[np.int64]:
    """Counts of the first two tokens, through a second pass where the first emitted one alone."""
    seeds = list(range(500, 500 + DRAWS))
    outcome = choices([()] * DRAWS, seeds, draft)
    first, second = outcome.emitted[:, 0], torch.full((DRAWS,), -1)
    long = outcome.accepted > 0
    if long.any():
        second[long] = outcome.emitted[long, 1]
    short = (~long).nonzero().flatten().tolist()
    again = choices([(int(first[i]),) for i in short], [seeds[i] for i in short], Draft.empty(len(short)))
    second[short] = again.bonus
    cells: Tensor = first * VOCABULARY + second
    return np.bincount(cells.numpy(), minlength=VOCABULARY**2).reshape(VOCABULARY, VOCABULARY)


def test_pairs_follow_the_penalised_law_through_a_tree() -> None:
    firsts, seconds = law((), SAMPLING), [law((token,), SAMPLING) for token in range(VOCABULARY)]
    counts = pair_counts(Draft.trees([TREE] * DRAWS))
    result = fit(counts, firsts[:, np.newaxis] * np.stack(seconds))
    assert result.good, result
    unpenalised = SamplingParams(SAMPLING.temperature, top_p=SAMPLING.top_p, logit_bias=SAMPLING.logit_bias)
    lost = [law((token,), unpenalised) for token in range(VOCABULARY)]
    assert not fit(counts, firsts[:, np.newaxis] * np.stack(lost)).good, "a lost penalty would not show"
