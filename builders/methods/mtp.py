"""`mtp`: multi-token-prediction modules draft, those of the target's own folder or others (DeepSeek-V3, 2024)."""

from __future__ import annotations

from builders.methods.shapes import describe_drafts
from trtspec.speculative import SpeculativeConfig

SUMMARY = "multi-token-prediction modules draft, the target's own or trained ones"


def plan(config: SpeculativeConfig) -> str:
    return f"the modules propose {describe_drafts(config)}"
