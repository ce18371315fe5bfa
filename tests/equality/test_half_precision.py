"""bfloat16: text may part from another schedule's only where the two best tokens nearly tie."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from builders.build import main
from tests.engines import one_by_one, staggered
from tests.equality.margin import compare
from tests.models import tiny_llama
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.types import Request

MARGIN = 0.25
"""Gap of the two best logits below which passes of different shapes may disagree: the best logits are about 7,
where neighbours in bfloat16 are 1/32 apart, and each pass rounds many times."""
TOKENS = 48


def build(root: Path, runner: str) -> tuple[Path, Path]:
    model = tiny_llama(root / "model", dtype=torch.bfloat16, seed=4)
    argv = ["--method", "ngram", "--dtype", "bfloat16", "--target", str(model), "--output", str(root / "engine")]
    assert main([*argv, "--runner", runner]) == 0
    return model, root / "engine"


async def run(directory: Path, prompts: list[tuple[int, ...]]) -> list[list[list[int]]]:
    """The texts of three schedules: plain alone, speculative alone, speculative together."""
    executor = await open_executor(directory, EngineOptions(kv_cache_mib=64, threads=1), in_process=True)
    try:
        texts = []
        for depth, schedule in ((0, one_by_one), (8, one_by_one), (8, staggered)):
            requests = [Request(str(i), prompt, TOKENS, max_draft_tokens=depth) for i, prompt in enumerate(prompts)]
            texts.append([result.ids for result in await schedule(executor, requests)])
        return texts
    finally:
        await executor.aclose()


@pytest.mark.parametrize("runner", ["eager", "openvino"])
def test_schedules_part_at_near_ties_only(tmp_path: Path, runner: str) -> None:
    folder, engine = build(tmp_path, runner)
    values = torch.Generator().manual_seed(5)
    prompts = [tuple(torch.randint(3, 260, (length,), generator=values).tolist()) for length in (2, 9, 17, 40)]
    plain, *others = asyncio.run(run(engine, prompts))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    compared = sum(compare(model, prompts, plain, texts, MARGIN) for texts in others)
    assert compared > TOKENS, "the texts part so early that nothing was compared"
