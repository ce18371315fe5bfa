"""`none`: plain decoding, the baseline of every comparison."""

from __future__ import annotations

from trtspec.errors import ConfigError
from trtspec.speculative import SpeculativeConfig

SUMMARY = "plain decoding, no draft"


def plan(config: SpeculativeConfig) -> str:
    if config != SpeculativeConfig(config.method):
        raise ConfigError('--speculative-config: method "none" drafts nothing; remove the other keys')
    return SUMMARY
