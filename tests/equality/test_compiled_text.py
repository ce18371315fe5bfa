"""The compiled runner's text, in float32, under the margin rule: by `transformers`, in any schedule, at any depth."""

from __future__ import annotations

import pytest

from tests.engines import staggered
from tests.equality.conftest import Subject, random_subject
from tests.equality.margin import compare
from tests.equality.test_same_text import DEPTH, SCHEDULES, WITHOUT_SPECULATION, Schedule, opened, requests
from tests.models import tiny_model

MARGIN = 1e-3
"""Of logits of 10 and more: far above what another order of summation moves in float32."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    root = tmp_path_factory.mktemp("compiled")
    folder = tiny_model(root / "model", "Qwen2ForCausalLM", spread=0.5, seed=4)
    return random_subject(root, folder, runner="openvino")


async def check(subject: Subject, schedule: Schedule, tokens: int) -> None:
    expected = subject.references(tokens)
    for speculative, depth in ((WITHOUT_SPECULATION, 0), (None, DEPTH)):
        async with opened(subject, speculative) as executor:
            results = await schedule(executor, requests(subject, depth, tokens))
        texts = [result.ids for result in results]
        compared = compare(subject.model, subject.prompts, expected, texts, MARGIN)
        assert compared > 0.9 * sum(map(len, expected)), "the texts part so early that little was compared"
        assert (sum(result.stats.accepted for result in results) > 0) == (depth > 0)


@SCHEDULES
async def test_text_is_that_of_transformers(compiled: Subject, schedule: Schedule) -> None:
    await check(compiled, schedule, 48)


@pytest.mark.slow  # by default random models stand for it, and `./scripts/demo` runs the demo model
@pytest.mark.demo_model
@pytest.mark.timeout(1200)
async def test_the_demo_model_says_what_transformers_says(compiled_demo: Subject) -> None:
    await check(compiled_demo, staggered, 64)
