"""`eagle3`: a layer over hidden states of several layers of the target drafts (Li et al. 2025)."""

from __future__ import annotations

from builders.methods.shapes import describe_drafts
from trtspec.speculative import SpeculativeConfig

SUMMARY = "a layer over hidden states from several of the target's layers drafts (EAGLE-3)"


def plan(config: SpeculativeConfig) -> str:
    return f"the layer proposes {describe_drafts(config)}"
