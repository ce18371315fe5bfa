"""One pass, from plan to outcome: the straight line that every method and the baseline take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from trtspec.decoding.acceptance import Acceptance, exact
from trtspec.decoding.draft import Draft
from trtspec.decoding.edits import Editor
from trtspec.decoding.guiding import GuidedText, prune
from trtspec.decoding.logprobs import RowLogprobs, pass_logprobs
from trtspec.decoding.plan import Runner, StepPlan
from trtspec.decoding.proposer import Proposer
from trtspec.decoding.verify import Outcome


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass decided, row by row of its plan."""

    draft: Draft
    outcome: Outcome
    logprobs: tuple[RowLogprobs | None, ...]
    """None where a row's request asks for none."""
    features: tuple[Tensor | None, ...]
    """[fed + accepted, F] each, in the order of the text; None where the proposer needs none."""
    completed: tuple[int | None, ...]
    """How many of the emitted tokens complete a text that no token can end; None elsewhere."""


def run_pass(
    plan: StepPlan, proposer: Proposer, runner: Runner, editor: Editor, acceptance: Acceptance = exact
) -> PassResult:
    """Propose, forward, choose, verify. Proposer, runner and editor touch only what they own."""
    editor.release(plan.released)
    guided = [editor.guided(row) for row in plan.rows]
    draft = prune(proposer.propose(plan.view(guided)), guided)
    if any(count > row.max_nodes for row, count in zip(plan.rows, draft.counts.tolist(), strict=True)):
        raise ValueError(f"the proposer drafted {draft.counts.tolist()} nodes, more than its rows have room for")
    target = runner.forward(plan, draft)
    outcome = acceptance(plan, draft, target.logits, editor)
    kept = _features(plan, draft, outcome, target.features)
    return PassResult(draft, outcome, pass_logprobs(plan, draft, outcome, target), kept, _completed(guided, outcome))


def _completed(guided: Sequence[GuidedText | None], outcome: Outcome) -> tuple[int | None, ...]:
    if not any(guided):
        return (None,) * len(guided)
    emitted = [row[: count + 1] for row, count in zip(outcome.emitted.tolist(), outcome.accepted.tolist(), strict=True)]
    return tuple(text.completed(row) if text else None for text, row in zip(guided, emitted, strict=True))


def _features(plan: StepPlan, draft: Draft, outcome: Outcome, features: Tensor | None) -> tuple[Tensor | None, ...]:
    """Of each row the features of what stays in the cache: fed tokens, then accepted nodes."""
    if features is None:
        return (None,) * len(plan.rows)
    sizes = [row.fed + count for row, count in zip(plan.rows, draft.counts.tolist(), strict=True)]
    begins = list(accumulate(sizes, initial=0))
    paths = [path[:count] for path, count in zip(outcome.path.tolist(), outcome.accepted.tolist(), strict=True)]
    columns = zip(plan.rows, begins, paths, strict=False)
    return tuple(_kept(features, begin, row.fed, path) for row, begin, path in columns)


def _kept(features: Tensor, begin: int, fed: int, path: Sequence[int]) -> Tensor:
    nodes = begin + fed
    if list(path) == list(range(len(path))):  # a chain, which needs no copy
        return features[begin : nodes + len(path)]
    return features[[*range(begin, nodes), *(nodes + node for node in path)]]
