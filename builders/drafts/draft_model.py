"""A whole smaller model as a drafter: any Hugging Face folder or `.gguf` file that could be a target."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from builders.checkpoint import Checkpoint, open_checkpoint
from builders.drafts.card import Card
from builders.drafts.eagle_layers import within_window
from builders.drafts.source import DraftSource, OpenedDraft
from builders.layout import layout
from trtspec.executors.embedded.drafter_config import TOKENS, DrafterConfig
from trtspec.types import Method


def open_draft_model(path: Path) -> OpenedDraft:
    """A model's files say nothing of a target."""
    return OpenedDraft(path, "model", Card(Method.DRAFT_MODEL), partial(_source, path))


def _source(path: Path, target: Checkpoint) -> DraftSource:
    model = open_checkpoint(path, "--draft")
    config = DrafterConfig(
        kind=TOKENS,
        decoder=within_window(model.config, model.attention_window),
        features=(),
        vocabulary_size=min(model.config.vocab_size, target.config.vocab_size),
        own_embedding=True,
        own_head=True,
    )
    return DraftSource(path, config, layout(model.config), model.read, model=model)
