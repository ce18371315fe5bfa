"""`none`: plain decoding, the baseline of every comparison."""

from __future__ import annotations

from trtspec.speculative import SpeculativeConfig

SUMMARY = "plain decoding, no draft"


def plan(config: SpeculativeConfig) -> str:
    return SUMMARY
