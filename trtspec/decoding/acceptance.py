"""The rules by which drafted tokens stay, by their names in a speculative configuration."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from trtspec.decoding.choosing import choose_all
from trtspec.decoding.draft import Draft
from trtspec.decoding.edits import Editor
from trtspec.decoding.plan import StepPlan
from trtspec.decoding.verify import Outcome, walk_tree

Acceptance = Callable[[StepPlan, Draft, Tensor, Editor], Outcome]
"""From a plan, its draft and the logits of its scored places to what is emitted."""


def exact(plan: StepPlan, draft: Draft, logits: Tensor, editor: Editor) -> Outcome:
    """A node is accepted iff it equals the target's own choice: with a seed, the text is that of plain decoding."""
    return walk_tree(draft, choose_all(plan, draft, logits, editor))
