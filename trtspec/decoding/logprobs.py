"""Log-probabilities that a pass tells: of what it emitted, and of the prompt tokens its scored places predict.

They are those of the model itself: raw logits, before penalties, bias, masks, temperature and truncation. Only
places whose token is told are computed. It knows which tokens were emitted, not why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.decoding import rowwise
from trtspec.decoding.draft import Draft
from trtspec.decoding.plan import PlanRow, StepPlan, TargetOutput, roots
from trtspec.decoding.verify import Outcome
from trtspec.types import TokenLogprob, TokenLogprobs

_PLACES_AT_ONCE = 64
"""Bounds the float32 copies: a prompt's chunk of 2,048 places over 150,000 tokens would take 1.2 GB each."""


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """What a pass tells for one plan row."""

    emitted: tuple[TokenLogprobs, ...]
    """One for each emitted token, where the request asks for them."""
    prompt: tuple[TokenLogprobs, ...]
    """One for each prompt token predicted here, in order; the row that starts at 0 tells the first prompt token too."""


class PlacedToken(NamedTuple):
    """A token whose log-probability is told."""

    place: int
    """Row of the logits that predict it."""
    token_id: int
    top: int
    """How many best tokens are told with it."""


def pass_logprobs(
    plan: StepPlan, draft: Draft, outcome: Outcome, target: TargetOutput
) -> tuple[RowLogprobs | None, ...]:
    """One for each plan row; None where the request asks for no log-probabilities."""
    asked = [row.request.logprobs is not None or row.request.prompt_logprobs is not None for row in plan.rows]
    if not any(asked):
        return (None,) * len(asked)
    columns = zip(plan.rows, roots(plan, draft).tolist(), outcome.path.tolist(), outcome.emitted.tolist(), strict=True)
    placed = [(_emitted(row, root, path, ids), _prompt(row, root)) for row, root, path, ids in columns]
    told = iter(token_logprobs(target.logits, [item for pair in placed for items in pair for item in items]))
    rows = [
        RowLogprobs(_take(told, len(emitted)), _first_of_prompt(row) + _take(told, len(prompt)))
        for row, (emitted, prompt) in zip(plan.rows, placed, strict=True)
    ]
    return tuple(row if wanted else None for row, wanted in zip(rows, asked, strict=True))


def token_logprobs(logits: Tensor, placed: Sequence[PlacedToken]) -> list[TokenLogprobs]:
    """log softmax of the logits at each place: the token's own with its rank, and the best. Ties go by id."""
    parts = [placed[start : start + _PLACES_AT_ONCE] for start in range(0, len(placed), _PLACES_AT_ONCE)]
    return [item for part in parts for item in _part_logprobs(logits, part)]


def _part_logprobs(logits: Tensor, placed: Sequence[PlacedToken]) -> list[TokenLogprobs]:
    scores = logits[[item.place for item in placed]].float()
    ids = torch.tensor([item.token_id for item in placed], device=logits.device).unsqueeze(1)
    normaliser = scores.logsumexp(dim=1, keepdim=True)
    own = scores.gather(1, ids)
    ranks = (scores > own).sum(dim=1) + 1
    best = _best(scores, normaliser, max(item.top for item in placed))
    columns = zip(placed, (own - normaliser).squeeze(1).tolist(), ranks.tolist(), best, strict=True)
    return [
        TokenLogprobs(TokenLogprob(item.token_id, logprob, rank), top[: item.top])
        for item, logprob, rank, top in columns
    ]


def _best(scores: Tensor, normaliser: Tensor, count: int) -> list[tuple[TokenLogprob, ...]]:
    """The `count` best tokens of each row."""
    rows = len(scores)
    if count == 0:
        return [()] * rows
    flat, row, token = rowwise.entries(scores, rowwise.top(scores, min(count, scores.shape[1]))[:, -1:])
    score = scores.flatten()[flat]
    order = score.argsort(descending=True, stable=True)
    order = order[row[order].argsort(stable=True)]
    logprob = score - normaliser[row, 0]
    best: list[list[TokenLogprob]] = [[] for _ in range(rows)]
    rank, last = 0, (-1, 0.0)
    for place, token_id, value, log in zip(
        *(item[order].tolist() for item in (row, token, score, logprob)), strict=True
    ):
        if (place, value) != last:  # equals share a rank
            rank, last = len(best[place]) + 1, (place, value)
        if len(best[place]) < count:
            best[place].append(TokenLogprob(token_id, log, rank))
    return [tuple(items) for items in best]


def _emitted(row: PlanRow, root: int, path: Sequence[int], ids: Sequence[int]) -> list[PlacedToken]:
    """The accepted tokens and the bonus, each where it was chosen; what is no token is told nowhere."""
    top = row.request.logprobs
    if top is None or not row.samples:
        return []
    places = [root, *(root + 1 + node for node in path if node >= 0)]
    return [PlacedToken(place, token, top) for place, token in zip(places, ids, strict=False) if token >= 0]


def _prompt(row: PlanRow, root: int) -> list[PlacedToken]:
    """Prompt tokens that follow a scored one."""
    top, prompt = row.request.prompt_logprobs, row.request.prompt
    if top is None:
        return []
    first = row.next_position - row.scored + 1
    place = root - row.scored + 1
    return [PlacedToken(place + i, token, top) for i, token in enumerate(prompt[first : row.next_position + 1])]


def _first_of_prompt(row: PlanRow) -> tuple[TokenLogprobs, ...]:
    """Nothing predicts it."""
    if row.request.prompt_logprobs is None or row.start > 0:
        return ()
    return (TokenLogprobs(TokenLogprob(row.request.prompt[0], None, None)),)


def _take(told: Iterator[TokenLogprobs], count: int) -> tuple[TokenLogprobs, ...]:
    return tuple(islice(told, count))
