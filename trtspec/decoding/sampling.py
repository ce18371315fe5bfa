"""From logits to the target's token: processors, then the Gumbel-coupled choice.

A row is one place where a token is chosen: the root of a sequence or a node of its draft. The noise of a row is a
function of (seed, position, choice), so every schedule that reaches the same logits chooses the same token.
The order of processors and their edge cases follow `transformers`: edits, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.decoding import rowwise
from trtspec.decoding.processors import PlaceEdits, apply
from trtspec.decoding.rng import MAX_NOISE, MIN_NOISE, Lane, gumbel, seed_words
from trtspec.decoding.sending import send, sent
from trtspec.errors import EngineFault, InvalidField, RequestError
from trtspec.guides import Guide
from trtspec.types import SamplingParams

NO_TOKEN = -1
"""Chosen where the model's logits are not numbers."""
NOTHING_ALLOWED = -2
"""Chosen where edits forbid every token."""
FAULTS = frozenset({NO_TOKEN, NOTHING_ALLOWED})

_NEAR = 3.0
"""The winner's value is about that of the tokens so close to the best: their noise rules most others out."""
_MANY = 1024
"""Candidates a row from which on it pays to rule some out first."""


def fault(token: int, guide: Guide | None = None) -> RequestError:
    """Why a row has no token: what ends its request."""
    if token == NOTHING_ALLOWED and guide is not None:
        return InvalidField(
            guide.field,
            "leaving no token that could follow",
            "a guide that texts of this model can follow in reasonable time, beside logit_bias and bad_words",
        )
    if token == NOTHING_ALLOWED:
        return InvalidField("sampling", "forbidding every token", "logit_bias and bad_words that leave one")
    return EngineFault("the model's logits are not finite; this request cannot go on")


@dataclass(frozen=True, slots=True)
class ChoiceRows:
    """How and where each of S rows chooses."""

    sampling: Sequence[SamplingParams]
    seeds: Sequence[int]
    positions: Sequence[int]
    """Index in the sequence of the token to choose, prompt included."""
    choices: Sequence[int]
    """Which of a request's n outputs."""
    edits: Sequence[PlaceEdits | None] = ()
    """One for each row, or nothing at all."""
    lane: Lane = Lane.TARGET
    """Whose noise it is."""


def choose(logits: Tensor, rows: ChoiceRows) -> Tensor:
    """The target's token of each row, [S] int64; NO_TOKEN where a row's best logit is NaN or infinite, and
    NOTHING_ALLOWED where edits leave none.

    Greedy rows take the arg-max of edited logits; others the arg-max of processed logits plus Gumbel noise. Ties go
    to the lowest id. What the model said is judged before edits, which could hide it.
    """
    logits = logits.float()
    ids = best_tokens(logits)
    edits = rows.edits or [None] * len(rows.sampling)
    columns = enumerate(zip(rows.sampling, edits, strict=True))
    processed = [row for row, (params, edit) in columns if edit or not params.greedy]
    if processed:
        chosen = _choose_processed(logits, processed, rows)
        ids = _put(ids, processed, torch.where(_pick(ids, processed) == NO_TOKEN, NO_TOKEN, chosen))
    return ids


def best_tokens(logits: Tensor) -> Tensor:
    """`choose` for greedy rows without edits. Logits in half precision are compared as they are, without a copy."""
    ids = rowwise.argmax(logits)
    return torch.where(torch.isfinite(logits.gather(1, ids.unsqueeze(1)).squeeze(1)), ids, NO_TOKEN)


def token_law(logits: Tensor, rows: ChoiceRows) -> Tensor:
    """What `choose` draws from, [S, V] float32; zero everywhere where it finds no token. No row may be greedy."""
    return token_scores(logits, rows).softmax(dim=1).nan_to_num(0.0)


def token_scores(logits: Tensor, rows: ChoiceRows) -> Tensor:
    """Scores whose softmax is that law, [S, V] float32; -inf everywhere where there is no token."""
    logits = logits.float()
    faulty = best_tokens(logits) == NO_TOKEN
    return process(edited(logits, rows), rows.sampling).masked_fill(faulty.unsqueeze(1), -math.inf)


def take(rows: ChoiceRows, indices: Sequence[int]) -> ChoiceRows:
    """Some of the rows."""
    return ChoiceRows(
        sampling=[rows.sampling[i] for i in indices],
        seeds=[rows.seeds[i] for i in indices],
        positions=[rows.positions[i] for i in indices],
        choices=[rows.choices[i] for i in indices],
        edits=[rows.edits[i] for i in indices] if rows.edits else (),
        lane=rows.lane,
    )


def edited(logits: Tensor, rows: ChoiceRows) -> Tensor:
    """The logits after each row's edits; a copy where any row has some."""
    if not any(rows.edits):
        return logits
    logits = logits.clone()
    for index, edits in enumerate(rows.edits):
        if edits:
            apply(logits[index], edits)
    return logits


def process(logits: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Edited logits divided by temperature, with truncated tokens at -inf, [S, V] float32; no row may be greedy."""
    scores = _tempered(logits.float(), sampling)
    if not any(params.truncates for params in sampling):
        return scores
    return scores.masked_fill(scores < _floor(scores, _best(scores), sampling), -math.inf)


def _choose_processed(logits: Tensor, processed: Sequence[int], rows: ChoiceRows) -> Tensor:
    """`choose` for those of the rows that need more than an arg-max."""
    logits, rows = _pick(logits, processed), take(rows, processed)
    logits = edited(logits, rows)
    ids = rowwise.argmax(logits)
    forbidden = torch.isneginf(logits.gather(1, ids.unsqueeze(1)).squeeze(1))
    sampled = [row for row, params in enumerate(rows.sampling) if not params.greedy]
    if sampled:
        ids = _put(ids, sampled, _draw(_pick(logits, sampled), take(rows, sampled)))
    return torch.where(forbidden, NOTHING_ALLOWED, ids)


def _tempered(logits: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    temperatures = sent([params.temperature for params in sampling], torch.float32, logits.device)
    return logits / temperatures.unsqueeze(1)


def _best(scores: Tensor) -> Tensor:
    return scores.gather(1, rowwise.argmax(scores).unsqueeze(1))


def _floor(scores: Tensor, best: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """The least score that truncation keeps in each row, [S, 1]. Its equals stay, so that no order of ties matters."""
    floor = torch.full_like(best, -math.inf)
    truncated = [row for row, params in enumerate(sampling) if params.truncates]
    if truncated:
        kinds = [sampling[row] for row in truncated]
        scores, best = _pick(scores, truncated), _pick(best, truncated)
        kept = _top_k_floor(scores, [params.top_k for params in kinds])
        kept = _top_p_floor(scores, best, kept, kinds)
        floor = _put(floor, truncated, kept.maximum(_min_p_floor(best, [params.min_p for params in kinds])))
    return floor


def _top_k_floor(scores: Tensor, top_k: Sequence[int]) -> Tensor:
    """The k-th largest score of each row, [S, 1]; -inf where k is 0."""
    most = min(max(top_k), scores.shape[1])
    if most == 0:
        return scores.new_full((len(top_k), 1), -math.inf)
    ks = sent([min(k, most) for k in top_k], torch.int64, scores.device).unsqueeze(1)
    return rowwise.top(scores, most).gather(1, (ks - 1).clamp(min=0)).masked_fill(ks == 0, -math.inf)


def _top_p_floor(scores: Tensor, best: Tensor, kept: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """The smallest score in each row's nucleus, [S, 1]: of the tokens from `kept` on, the fewest best ones with
    probability top_p or more; `kept` where top_p is 1.

    V tokens that are each below (1 - top_p) / V of the best one's probability weigh less than 1 - top_p together, so
    no nucleus reaches them, and only the others are sorted.
    """
    if all(params.top_p >= 1.0 for params in sampling):
        return kept
    wanted = sent([params.top_p for params in sampling], torch.float64, scores.device).unsqueeze(1)
    without_top_k = [params.top_k == 0 for params in sampling]
    open_ended = sent(without_top_k, torch.bool, scores.device).unsqueeze(1)
    reach = torch.where(open_ended, best + ((1.0 - wanted) / scores.shape[1]).log().float(), kept)
    candidates = rowwise.entries(scores, reach)
    ordered = rowwise.descending(_ragged(scores.flatten()[candidates.flat], candidates.row, len(scores)))
    weights = (ordered - best).double().exp()
    cumulative = weights.cumsum(dim=1)
    total = cumulative[:, -1:]
    if any(without_top_k):
        total = total + _rest(scores, best, candidates.flat).where(open_ended, 0.0)
    size = (cumulative - weights < wanted * total).sum(dim=1, keepdim=True)
    # A row of NaN has no nucleus; `choose` reports it.
    return torch.where(wanted < 1.0, ordered.gather(1, (size - 1).clamp(min=0)), kept)


def _rest(scores: Tensor, best: Tensor, candidates: Tensor) -> Tensor:
    """What all tokens but the candidates weigh beside each row's best one, [S, 1] float64."""
    weights = (scores - best).exp()
    weights.view(-1)[candidates] = 0.0
    return rowwise.sums(weights).double()


def _ragged(values: Tensor, row: Tensor, rows: int) -> Tensor:
    """Values given row by row as a matrix, padded with -inf, [rows, at least 1]."""
    counts = row.new_zeros(rows).index_add_(0, row, torch.ones_like(row))
    column = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    matrix = values.new_full((rows, max(1, int(counts.max()))), -math.inf)
    matrix[row, column] = values
    return matrix


def _min_p_floor(best: Tensor, min_p: Sequence[float]) -> Tensor:
    """The score of min_p times the best token's probability, [S, 1]."""
    logs = [math.log(p) if p > 0.0 else -math.inf for p in min_p]
    return best + sent(logs, torch.float32, best.device).unsqueeze(1)


def _draw(logits: Tensor, rows: ChoiceRows) -> Tensor:
    """Gumbel-max over the tokens that can win: noise is bounded, so the others need none."""
    scores = _tempered(logits, rows.sampling)
    best = _best(scores)
    floor = _floor(scores, best, rows.sampling).maximum(best - (MAX_NOISE - MIN_NOISE))
    flat, row, token = rowwise.entries(scores, floor)
    values = scores.flatten()[flat]
    if len(row) > _MANY * len(scores):
        near = values >= best[row, 0] - _NEAR
        least = _largest(_noisy(values[near], row[near], token[near], rows), row[near], len(scores))
        able = values >= least[row] - MAX_NOISE
        row, token, values = row[able], token[able], values[able]
    noisy = _noisy(values, row, token, rows)
    winners = torch.where(noisy == _largest(noisy, row, len(scores))[row], token, scores.shape[1])
    return token.new_full((len(scores),), scores.shape[1]).scatter_reduce(0, row, winners, "amin")


def _noisy(scores: Tensor, row: Tensor, token: Tensor, rows: ChoiceRows) -> Tensor:
    """Scores of some tokens plus their noise, float64."""
    positions = sent(rows.positions, torch.int64, row.device)[row]
    choices = sent(rows.choices, torch.int64, row.device)[row]
    seeds = send(seed_words(list(rows.seeds)), row.device)[:, row]
    return scores.double() + gumbel(seeds, positions, choices, token, rows.lane)


def _largest(values: Tensor, row: Tensor, rows: int) -> Tensor:
    """The largest value of each row, [rows]; -inf for a row without any."""
    return values.new_full((rows,), -math.inf).scatter_reduce(0, row, values, "amax")


def _pick(values: Tensor, indices: Sequence[int]) -> Tensor:
    """Some rows; no copy where it is all of them."""
    return values if len(indices) == len(values) else values[sent(indices, torch.int64, values.device)]


def _put(values: Tensor, indices: Sequence[int], chosen: Tensor) -> Tensor:
    """Values with other ones in some rows."""
    if len(indices) == len(values):
        return chosen
    return values.index_copy(0, sent(indices, torch.int64, values.device), chosen)
