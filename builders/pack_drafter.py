"""The drafter's stage of a build: cut to the target's vocabulary, shown to be the target's, packed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from builders.drafts.checks import match_identity
from builders.drafts.source import DraftSource
from builders.drafts.tokenizers import check_same_tokenizer
from builders.pack import Form, Weights, pack_weights
from builders.recipe import Plan
from builders.text import load_tokenizer
from trtspec.executors.embedded import drafter_config, drafter_weights
from trtspec.manifest import UNVERIFIED, DrafterRecord

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def fit_drafter(
    source: DraftSource, tokenizer: PreTrainedTokenizerBase, vocabulary_size: int, *, allow_unverified: bool
) -> DraftSource:
    """Check what only the target's tokenizer tells, and leave out what the target never emits."""
    if source.model is not None:
        drafter = load_tokenizer(source.model)
        same = check_same_tokenizer(source.path, drafter, tokenizer, allow_other_ends=allow_unverified)
        source = replace(source, same_tokenizer=same)
    return source.for_vocabulary(vocabulary_size)


def pack_drafter(source: DraftSource, form: Form, directory: Path) -> None:
    """Write the drafter's files."""
    source.config.to_json(directory / drafter_config.NAME)
    weights = Weights(source.path, source.packed, source.tensor)
    pack_weights(weights, form, directory / drafter_weights.NAME, "drafter")


def match_drafter(plan: Plan, source: DraftSource, target_sha256: str) -> DrafterRecord:
    """What shows that the drafter is the target's. Raises `CheckpointError` where it was made for another one."""
    draft, matched_by = plan.recipe.draft, plan.matched_by
    if draft is None:
        raise ValueError("a plan without a drafter has none to pack")
    expected = draft.card.target_sha256
    if matched_by is None and expected is not None:
        allow = plan.recipe.allow_unverified_target
        matched_by = match_identity(draft.path, expected, target_sha256, allow_unverified=allow)
    return DrafterRecord(draft.format, expected, str(matched_by) if source.same_tokenizer else UNVERIFIED)
