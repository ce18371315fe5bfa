"""`ngram`: drafts continue an earlier occurrence of the last tokens; there are no weights to build."""

from __future__ import annotations

from trtspec.speculative import SpeculativeConfig

SUMMARY = "drafts copied from prompt and output (prompt lookup), no weights"


def plan(config: SpeculativeConfig) -> str:
    return (
        f"drafts up to {config.num_speculative_tokens} tokens, "
        f"matching the last {config.prompt_lookup_max} to {config.prompt_lookup_min}"
    )
