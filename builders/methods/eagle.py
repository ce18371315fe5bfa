"""`eagle`: a layer over the target's last hidden state drafts (Li et al. 2024); with `dynamic_tree`, EAGLE-2."""

from __future__ import annotations

from builders.methods.shapes import describe_drafts
from trtspec.speculative import SpeculativeConfig

SUMMARY = "a layer over the target's last hidden states drafts (EAGLE, EAGLE-2)"


def plan(config: SpeculativeConfig) -> str:
    return f"the layer proposes {describe_drafts(config)}"
