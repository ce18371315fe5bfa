"""Penalties, forbidden words and log-probabilities on real float32 models, against `transformers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from tests.equality.conftest import Subject
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.types import Request, SamplingParams, StepOutput, TokenLogprobs

TOKENS = 40
PROMPTS = (3, 9, 11)
"""One that repeats itself, and longer ones of 64 and 100 tokens: more than one chunk."""
PASS_TOKENS = 48
TOLERANCE = 1e-4
"""float32 passes of other shapes round differently, by less than 1e-5 on logits of about 10."""
EVERY_MODE = pytest.mark.parametrize("speculative", [{"method": "none"}, None], ids=["none", "ngram"])


@dataclass
class Told:
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    accepted: int = 0


async def run(subject: Subject, speculative: Mapping[str, Any] | None, requests: Sequence[Request]) -> list[Told]:
    options = EngineOptions(
        kv_cache_mib=64, threads=subject.threads, speculative=speculative, max_pass_tokens=PASS_TOKENS
    )
    executor = await open_executor(subject.directory, options, in_process=True)
    try:
        return [await tell(executor, request) for request in requests]
    finally:
        await executor.aclose()


async def tell(executor: Executor, request: Request) -> Told:
    told = Told()
    async for event in executor.generate(request):
        if isinstance(event, StepOutput):
            told.ids += event.token_ids
            told.logprobs += event.logprobs
            told.prompt_logprobs += event.prompt_logprobs
            told.accepted += sum(item.accepted for item in event.passes)
    return told


def generated(subject: Subject, prompt: Sequence[int], **settings: Any) -> list[int]:
    """`transformers.generate`, greedy. One prompt at a time: padding would count as history."""
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        output = subject.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0, **settings
        )
    return output[0, len(prompt) :].tolist()


@EVERY_MODE
async def test_penalised_text_is_that_of_transformers(tiny: Subject, speculative: Mapping[str, Any] | None) -> None:
    """With forbidden words of one and of two tokens that the text would hold, and a minimum length."""
    prompts = [tiny.prompts[i] for i in PROMPTS]
    penalised = {"repetition_penalty": 1.3, "min_new_tokens": 30, "eos_token_id": sorted(tiny.eos_ids)}
    free = [generated(tiny, prompt, **penalised) for prompt in prompts]
    words = tuple({word for text in free for word in ((text[7],), (text[12], text[13]))})
    forbidden = [list(word) for word in words]
    expected = [generated(tiny, prompt, **penalised, bad_words_ids=forbidden) for prompt in prompts]
    assert all(text != other for text, other in zip(expected, free, strict=True)), "the words have no effect"
    sampling = SamplingParams(repetition_penalty=1.3, bad_words=words, min_tokens=30)
    requests = [
        Request(str(i), prompt, TOKENS, sampling, eos_ids=tiny.eos_ids, max_draft_tokens=0 if speculative else 4)
        for i, prompt in enumerate(prompts)
    ]
    assert [told.ids for told in await run(tiny, speculative, requests)] == expected


@EVERY_MODE
async def test_logprobs_are_those_of_transformers(tiny: Subject, speculative: Mapping[str, Any] | None) -> None:
    """Of the output and of prompts of several chunks, while a penalty changes the text but not what is told."""
    sampling = SamplingParams(repetition_penalty=0.9)
    requests = [
        Request(
            str(i),
            tiny.prompts[i],
            TOKENS,
            sampling,
            logprobs=5,
            prompt_logprobs=3,
            max_draft_tokens=0 if speculative else 4,
        )
        for i in PROMPTS
    ]
    results = await run(tiny, speculative, requests)
    assert (sum(told.accepted for told in results) > 0) == (speculative is None)
    for request, told in zip(requests, results, strict=True):
        text = [*request.prompt, *told.ids]
        with torch.inference_mode():
            law = tiny.model(torch.tensor([text])).logits[0].log_softmax(dim=1)
        assert told.prompt_logprobs[0].chosen.logprob is None
        entries = [*told.prompt_logprobs, *told.logprobs]
        assert len(entries) == len(text)
        for place, entry in enumerate(entries[1:], start=1):
            check(entry, law[place - 1], text[place], 3 if place < len(request.prompt) else 5)


def check(entry: TokenLogprobs, law: torch.Tensor, token: int, top: int) -> None:
    """Near-ties may change places, so tokens are compared by their values."""
    assert entry.chosen.token_id == token
    assert entry.chosen.logprob == pytest.approx(law[token].item(), abs=TOLERANCE)
    assert entry.chosen.rank is not None
    assert (law > law[token] + TOLERANCE).sum() < entry.chosen.rank <= (law >= law[token] - TOLERANCE).sum()
    assert [item.logprob for item in entry.top] == pytest.approx(law.topk(top).values.tolist(), abs=TOLERANCE)
    assert [item.logprob for item in entry.top] == pytest.approx(
        [law[item.token_id].item() for item in entry.top], abs=TOLERANCE
    )
