"""Engine folders that are opened with kernels for choosing say what they say without."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.choosers import CHOOSERS, Asked
from tests.equality.conftest import Subject, random_subject
from tests.models import tiny_llama
from trtspec.config import EngineOptions
from trtspec.decoding.chooser import HOST, Chooser
from trtspec.executors import open_executor
from trtspec.executors.embedded import opening
from trtspec.executors.embedded.choosers import Passes
from trtspec.types import Request, SamplingParams, StepOutput

KINDS = (SamplingParams(), SamplingParams(1.0), SamplingParams(0.8, top_p=0.9, top_k=40), SamplingParams(min_tokens=5))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """In bfloat16, so that logits are."""
    root = tmp_path_factory.mktemp("half")
    folder = tiny_llama(root / "model", seed=4, dtype=torch.bfloat16)
    return random_subject(root, folder, "--dtype", "bfloat16")


@pytest.mark.parametrize("name", ["twins", pytest.param("kernels", marks=pytest.mark.slow)])
def test_opened_engines_say_the_same(half: Subject, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Passes]] = []

    def say(chooser: Asked) -> list[list[int]]:
        def chosen(device: torch.device, passes: Passes) -> Chooser:
            asked.append((device.type, passes))
            return chooser

        monkeypatch.setattr(opening, "choose_chooser", chosen)
        said = asyncio.run(texts(half.directory, half.prompts[:8]))
        assert chooser.passes["exact"] > 10
        return said

    assert say(Asked(CHOOSERS[name])) == say(Asked(HOST))
    assert set(asked) == {("cpu", Passes(torch.bfloat16, 267, nodes=8, acceptance="exact"))}


async def texts(directory: Path, prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Drafted by lookup, all requests together."""
    executor = await open_executor(directory, EngineOptions(kv_cache_mib=32, threads=1), in_process=True)
    requests = [
        Request(str(i), prompt, 10, KINDS[i % 4], seed=i, max_draft_tokens=4, eos_ids=frozenset({5}))
        for i, prompt in enumerate(prompts)
    ]

    async def one(request: Request) -> list[int]:
        events = [event async for event in executor.generate(request)]
        return [token for event in events if isinstance(event, StepOutput) for token in event.token_ids]

    try:
        return list(await asyncio.gather(*map(one, requests)))
    finally:
        await executor.aclose()
