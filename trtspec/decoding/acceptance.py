"""The rules by which drafted tokens stay, by their names in a speculative configuration.

Every rule but the exact one is for the drafts of some rows; the rows beside them go the exact way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from trtspec.decoding.chooser import HOST, Chooser, ends
from trtspec.decoding.choosing import starts
from trtspec.decoding.draft import Draft
from trtspec.decoding.edits import Editor
from trtspec.decoding.pass_rows import PassRows
from trtspec.decoding.plan import StepPlan
from trtspec.decoding.verify import Outcome, settle, typical_acceptance
from trtspec.speculative import EXACT, REJECTION, TYPICAL, SpeculativeConfig
from trtspec.types import OutputLaw

Acceptance = Callable[[StepPlan, Draft, Tensor, Editor], Outcome]
"""From a plan, its draft and the logits of its scored places to what is emitted."""

_LAWS = {EXACT: OutputLaw.EXACT, REJECTION: OutputLaw.EXACT, TYPICAL: OutputLaw.TYPICAL}
_PLACES_AT_ONCE = 64
"""Bounds the laws that are held at once: of a batch of trees they would take hundreds of megabytes."""


def rule(config: SpeculativeConfig, chooser: Chooser = HOST) -> Acceptance:
    """The rule that a configuration asks for, decided by a chooser."""
    rules: Mapping[str, Callable[..., Outcome]] = {
        EXACT: exact,
        REJECTION: rejection,
        TYPICAL: partial(typical, threshold=config.typical_threshold, alpha=config.typical_alpha),
    }
    return partial(rules[config.acceptance], chooser=chooser)


def law(config: SpeculativeConfig) -> OutputLaw:
    """What is known of the output under that rule."""
    return _LAWS[config.acceptance]


def exact(plan: StepPlan, draft: Draft, logits: Tensor, editor: Editor, *, chooser: Chooser = HOST) -> Outcome:
    """A node is accepted iff it equals the target's own choice: with a seed, the text is that of plain decoding."""
    return chooser.exact(PassRows(plan, draft, logits), editor)


def rejection(plan: StepPlan, draft: Draft, logits: Tensor, editor: Editor, *, chooser: Chooser = HOST) -> Outcome:
    """The papers' rule for chains that were drawn from a law, of sampled requests.

    The law is that of plain decoding; with a seed the text depends on how deep each pass drafted. At a position the
    drafter draws in lane DRAFT, whether the token stays in lane ACCEPT, and what follows the accepted ones in lane
    TARGET, all independent. A position behind a rejected one is drawn again with the same noise later on, which is
    fresh all the same: nothing that was emitted depends on it.
    """
    drawn = [taken and not sure for taken, sure in zip(_sampled(plan, draft), draft.rows_certain.tolist(), strict=True)]
    return _divided(drawn, chooser.rejection, PassRows(plan, draft, logits), editor, chooser)


def typical(
    plan: StepPlan,
    draft: Draft,
    logits: Tensor,
    editor: Editor,
    *,
    threshold: float,
    alpha: float,
    chooser: Chooser = HOST,
) -> Outcome:
    """What is likely enough stays, in drafts of sampled requests: longer runs, and another law than the target's."""
    likely = partial(_keep_likely, threshold=threshold, alpha=alpha)
    return _divided(_sampled(plan, draft), likely, PassRows(plan, draft, logits), editor, chooser)


def _sampled(plan: StepPlan, draft: Draft) -> list[bool]:
    """Rows with a draft whose request does not take the best token alone."""
    counts = draft.counts.tolist()
    return [count > 0 and not row.request.sampling.greedy for row, count in zip(plan.rows, counts, strict=True)]


def _divided(
    taken: Sequence[bool],
    take: Callable[[PassRows, Editor], Outcome],
    rows: PassRows,
    editor: Editor,
    chooser: Chooser,
) -> Outcome:
    """One rule for the rows that are taken, the exact one for the others."""
    if not any(taken):
        return chooser.exact(rows, editor)
    mine = [row for row, is_mine in enumerate(taken) if is_mine]
    others = [row for row, is_mine in enumerate(taken) if not is_mine]
    outcomes = [take(rows.pick(mine), editor)]
    if others:
        outcomes.append(chooser.exact(rows.pick(others), editor))
    order = torch.tensor(mine + others).argsort()
    return Outcome(*(torch.cat(columns)[order] for columns in zip(*outcomes, strict=True)))


def _keep_likely(rows: PassRows, editor: Editor, *, threshold: float, alpha: float) -> Outcome:
    draft = rows.draft
    trees = [root.with_nodes() for root in starts(rows.plan, draft)]
    likelihood, entropy = torch.zeros(draft.tokens.shape), torch.zeros(draft.tokens.shape)
    inner = [place for tree in trees for place in tree if place.children]
    for start in range(0, len(inner), _PLACES_AT_ONCE):
        part = inner[start : start + _PLACES_AT_ONCE]
        laws = rows.laws(part, editor)
        of = [i for i, place in enumerate(part) for _ in place.children]
        row, node = [part[i].index for i in of], [node for place in part for node in place.children]
        likelihood[row, node] = laws[of, draft.tokens[row, node]]
        entropy[row, node] = torch.special.entr(laws).sum(dim=1)[of]
    path = typical_acceptance(draft, likelihood, entropy, threshold, alpha)
    return settle(draft, path, rows.chosen(ends(trees, path), editor))
