"""Every architecture says what `transformers` says of it, and with a seed the same at any depth (float32)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.equality.conftest import Subject, random_subject
from tests.equality.test_same_text import SCHEDULES, Schedule, check_against_transformers, check_seeded
from tests.models import tiny_model

TOKENS = 24
CONTEXT = 124
"""The longest prompt and its text: as much as a window of that length covers."""
SPREAD = 0.5
"""Norms of 1 and biases of 0 would hide that they are missing or exchanged."""
MODELS: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {"head_dim": 24, "sliding_window": CONTEXT, "tie": False},
    "Qwen2ForCausalLM": {"rope_theta": 1e6, "rms_norm_eps": 1e-5},
    "Qwen3ForCausalLM": {"head_dim": 24, "rope_theta": 1e6, "tie": False},
}


@pytest.fixture(scope="module", params=MODELS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    root = tmp_path_factory.mktemp(request.param)
    folder = tiny_model(root / "model", request.param, spread=SPREAD, seed=6, **MODELS[request.param])
    made = random_subject(root, folder, "--max-context-tokens", str(CONTEXT))
    return replace(made, prompts=made.prompts[11:16:2])


@SCHEDULES
async def test_text_is_that_of_transformers(subject: Subject, schedule: Schedule) -> None:
    await check_against_transformers(subject, schedule, TOKENS)


async def test_seeded_text_is_identical_at_any_depth(subject: Subject) -> None:
    await check_seeded(subject, slice(0, 2), TOKENS)
