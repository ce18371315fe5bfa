"""The drafter's stage of a build: cut to the target's vocabulary, shown to be the target's, packed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builders.drafts.checks import match_identity
from builders.drafts.source import DraftSource
from builders.drafts.tokenizers import check_same_tokenizer
from builders.pack import Form, Weights, pack_weights
from builders.recipe import Plan
from builders.text import load_tokenizer
from trtspec.executors.embedded import drafter_config, drafter_weights
from trtspec.manifest import DrafterRecord

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def fit_drafter(source: DraftSource, tokenizer: PreTrainedTokenizerBase, vocabulary_size: int) -> DraftSource:
    """Check what only the target's tokenizer tells, and leave out what the target never emits."""
    if source.model is not None:
        check_same_tokenizer(source.path, load_tokenizer(source.model), tokenizer)
    return source.for_vocabulary(vocabulary_size)


def pack_drafter(plan: Plan, source: DraftSource, form: Form, target_sha256: str, directory: Path) -> DrafterRecord:
    """Write the drafter's files. Raises `CheckpointError` where it was made for another target."""
    record = _record(plan, target_sha256)
    source.config.to_json(directory / drafter_config.NAME)
    weights = Weights(source.path, source.packed, source.tensor)
    pack_weights(weights, form, directory / drafter_weights.NAME, "drafter")
    return record


def _record(plan: Plan, target_sha256: str) -> DrafterRecord:
    draft, matched_by = plan.recipe.draft, plan.matched_by
    if draft is None:
        raise ValueError("a plan without a drafter has none to pack")
    expected = draft.card.target_sha256
    if matched_by is None and expected is not None:
        allow = plan.recipe.allow_unverified_target
        matched_by = match_identity(draft.path, expected, target_sha256, allow_unverified=allow)
    return DrafterRecord(draft.format, expected, str(matched_by))
