"""The margin rule: texts of different arithmetic may part only where the two best tokens nearly tie."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def compare(
    model: torch.nn.Module,
    prompts: Sequence[tuple[int, ...]],
    expected: Sequence[Sequence[int]],
    found: Sequence[Sequence[int]],
    margin: float,
) -> int:
    """Assert the rule for each prompt, with the model's own logits; returns how many tokens were compared."""
    compared = 0
    for prompt, wanted, text in zip(prompts, expected, found, strict=True):
        pairs = enumerate(zip(wanted, text, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(wanted), len(text)))
        compared += same
        if list(wanted) != list(text):
            assert gap(model, [*prompt, *wanted[:same]]) < margin, f"token {same} differs, and not by a near-tie"
    return compared


def gap(model: torch.nn.Module, prefix: list[int]) -> float:
    """How far the best logit is above the second."""
    with torch.inference_mode():
        best = model(torch.tensor([prefix])).logits[0, -1].float().topk(2).values
    return (best[0] - best[1]).item()
