"""The target's own choice from the best logits of a position, wherever those decide it.

What was not told lies at or below the worst that was. So a row is as good as all logits where, after edits, its best
token is above anything untold (greedy), or where truncation keeps told tokens alone (sampled). The nucleus of top-p
needs the weight of what was not told under temperature and edits, of which there are two bounds: where both give the
same nucleus, it is the nucleus.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from trtspec.decoding.processors import PlaceEdits
from trtspec.decoding.sampling import NO_TOKEN, ChoiceRows, choose, edited
from trtspec.executors.tensorrt_llm.loop.top_rows import TopRow
from trtspec.types import SamplingParams

_ERROR = 1e-5
"""Of the weight of all logits, relative: its logarithm is a float32 of about 20."""

_LARGEST = 700.0
"""Of an exponent in float64."""


def decide(row: TopRow, rows: ChoiceRows, vocabulary: int) -> int | None:
    """What `choose` takes at a position, or None where the row does not decide it. `rows` is of that position alone.

    NO_TOKEN where the model's logits are no numbers.
    """
    if math.isnan(row.normaliser):
        return NO_TOKEN
    known = row.spread(vocabulary, -math.inf)
    if len(row.ids) >= vocabulary:
        return int(choose(known, rows))
    logits = edited(known, rows)[0]
    above = edited(row.spread(vocabulary, float(row.values[-1])), rows)[0]
    above[row.ids] = -math.inf
    ceiling, best = float(above.max()), float(logits.max())
    if ceiling > -math.inf and not best > ceiling:
        return None
    sampling = rows.sampling[0]
    if sampling.greedy or best == -math.inf:
        return int(choose(known, rows))
    floor = _kept_from(row, logits, above, rows)
    if not floor > float(above.max() / sampling.temperature):  # rounded as scores are, so that equals stay equal
        return None
    if sampling.top_k > 0:  # what it keeps is told, so that nothing after it sees the rest
        return int(choose(known, rows))
    kept = logits.masked_fill(logits / sampling.temperature < floor, -math.inf).unsqueeze(0)
    return int(choose(kept, replace(rows, sampling=[SamplingParams(temperature=sampling.temperature)], edits=())))


def _kept_from(row: TopRow, logits: Tensor, above: Tensor, rows: ChoiceRows) -> float:
    """The least score that truncation keeps, -inf where that is not certain or nothing is truncated."""
    sampling = rows.sampling[0]
    scores = (logits[row.ids] / sampling.temperature).sort(descending=True).values
    if sampling.top_k > 0:
        return float(scores[sampling.top_k - 1]) if sampling.top_k <= len(scores) else -math.inf
    least = float(scores[0] + scores.new_tensor(math.log(sampling.min_p))) if sampling.min_p > 0 else -math.inf
    if sampling.top_p >= 1:
        return least
    bounds = _untold(row, above, rows, float(scores[0]))
    floors = {max(_nucleus(scores, weight, sampling.top_p), least) for weight in bounds}
    return floors.pop() if len(floors) == 1 else -math.inf


def _nucleus(scores: Tensor, rest: float, top_p: float) -> float:
    """The smallest score of the nucleus where all that was not told weighs `rest`; -inf where it is not told."""
    weights = (scores - scores[0]).double().exp()
    cumulative = weights.cumsum(0)
    wanted = top_p * (float(cumulative[-1]) + rest)
    size = int((cumulative - weights < wanted).sum())
    return -math.inf if float(cumulative[-1]) < wanted else float(scores[size - 1])


def _untold(row: TopRow, above: Tensor, rows: ChoiceRows, best: float) -> tuple[float, float]:
    """Least and most of what the untold logits weigh: the sum of exp(logit / temperature - best).

    Their sum at temperature 1 is known. Of logits with that sum and below a ceiling, equal ones weigh least at lower
    temperatures and most at higher ones (Jensen's inequality); as few as possible, all at the ceiling, the other way
    round.
    """
    temperature, worst = rows.sampling[0].temperature, float(row.values[-1])
    changed, raised = _changed(row, rows.edits[0] if rows.edits else None, above)
    count = len(above) - len(row.ids)
    whole = math.exp(min(row.normaliser - worst, _LARGEST))  # of all logits, relative to the worst that was told
    told = float((row.values - worst).double().exp().sum())
    low, high = (whole * (1 + error) - told for error in (-_ERROR, _ERROR))
    # None weighs more than the worst that was told, whatever the error is.
    low, high = min(max(low - changed, 0.0), count), min(max(high, 0.0), count)
    even = [count * (weight / count) ** (1 / temperature) for weight in (low, high)]
    least, most = (even[0], high) if temperature <= 1 else (low, even[1])
    scale = math.exp(worst / temperature - best)
    return least * scale, most * scale + float((raised / temperature - best).double().exp().sum())


def _changed(row: TopRow, edits: PlaceEdits | None, above: Tensor) -> tuple[int, Tensor]:
    """How many of the untold logits edits change, and the most that each of those can be which are not forbidden."""
    if edits is None:
        return 0, torch.empty(0)
    tokens = torch.cat([edits.bias.tokens, edits.seen.tokens, edits.forbidden]).unique()
    untold = tokens[~torch.isin(tokens, row.ids)]
    return len(untold), above[untold]
