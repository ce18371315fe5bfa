"""`draft_model`: a smaller model with the target's tokenizer drafts what it would say itself."""

from __future__ import annotations

from builders.methods.shapes import describe_drafts
from trtspec.speculative import SpeculativeConfig

SUMMARY = "a smaller model of the same family drafts"


def plan(config: SpeculativeConfig) -> str:
    return f"the draft model proposes {describe_drafts(config)}, accepted by the rule {config.acceptance!r}"
