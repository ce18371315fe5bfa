"""`lookahead`: Jacobi windows of the target itself collect n-grams and verify them (Fu et al. 2024)."""

from __future__ import annotations

from trtspec.speculative import SpeculativeConfig

SUMMARY = "the target guesses ahead in windows of its own; compiled TensorRT-LLM engines only"


def plan(config: SpeculativeConfig) -> str:
    sizes = f"windows of {config.window_size}, n-grams of {config.ngram_size}"
    return f"{sizes}, up to {config.verification_set_size} of them verified in a pass"
