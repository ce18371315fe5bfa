"""`medusa`: heads on the target's last hidden state guess the tokens further on (Cai et al. 2024)."""

from __future__ import annotations

from builders.methods.shapes import describe_drafts
from trtspec.speculative import TYPICAL, SpeculativeConfig

SUMMARY = "heads on the target's last hidden state draft, each one place further on"


def plan(config: SpeculativeConfig) -> str:
    law = " (not lossless)" if config.acceptance == TYPICAL else ""
    return f"the heads propose {describe_drafts(config)}, accepted by the rule {config.acceptance!r}{law}"
