"""Whether engines say what they must: the text of `transformers`, and the same text by every schedule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM

from scripts.gpu_check.checks import Check
from scripts.gpu_check.running import BATCH, Text, opened, requests, run
from scripts.gpu_check.subject import Prompt, Subject
from trtspec.config import EngineOptions
from trtspec.types import SamplingParams

DEPTHS = (0, 1, 8)
MARGIN_STEPS = 8
"""So many bfloat16 neighbours apart must the two best logits be, or passes of other shapes may choose the other."""
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95)


@dataclass(frozen=True, slots=True)
class Schedule:
    depth: int
    concurrency: int

    def __str__(self) -> str:
        return f"depth {self.depth}, {self.concurrency} in flight"


SCHEDULES = [Schedule(depth, concurrency) for depth in DEPTHS for concurrency in (1, BATCH)]


async def texts(
    subject: Subject,
    prompts: Sequence[Prompt],
    tokens: int,
    options: EngineOptions,
    sampling: SamplingParams | None = None,
) -> dict[Schedule, list[Text]]:
    """What the engine says by every schedule."""
    async with opened(subject.engine, options, in_process=True) as executor:
        return {
            item: await run(executor, requests(prompts, tokens, item.depth, sampling), item.concurrency)
            for item in SCHEDULES
        }


def references(model: LlamaForCausalLM, prompts: Sequence[Prompt], tokens: int) -> list[list[int]]:
    """`transformers.generate`, greedy, one prompt after the other."""
    with torch.inference_mode():
        said = []
        for prompt in prompts:
            ids = torch.tensor([prompt], device=model.device)
            mask = torch.ones_like(ids)
            output = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
            said.append(output[0, len(prompt) :].tolist())
        return said


def all_equal(name: str, expected: Sequence[Sequence[int]], found: dict[Schedule, list[Text]]) -> Check:
    """Every schedule says the expected text."""
    for schedule, said in found.items():
        for i, (want, text) in enumerate(zip(expected, said, strict=True)):
            if text.ids != list(want):
                at = parting(want, text.ids)
                return Check(name, False, f"{schedule}: prompt {i} differs from token {at} on")
    count = sum(len(text.ids) for said in found.values() for text in said)
    return Check(name, True, f"{count} tokens by {len(found)} schedules")


def drafts_pass(name: str, found: dict[Schedule, list[Text]]) -> Check:
    """Drafts were accepted at each depth above 0 and only there, so that speculation is what was compared."""
    accepted = Counter({depth: 0 for depth in DEPTHS})
    for schedule, said in found.items():
        accepted[schedule.depth] += sum(text.accepted for text in said)
    passed = all((count > 0) == (depth > 0) for depth, count in accepted.items())
    return Check(name, passed, ", ".join(f"{count} at depth {depth}" for depth, count in accepted.items()))


def equal_within_margin(
    name: str,
    model: LlamaForCausalLM,
    prompts: Sequence[Prompt],
    expected: Sequence[Sequence[int]],
    found: dict[Schedule, list[Text]],
) -> Check:
    """Texts part only where the two best logits of `transformers` nearly tie; what comes after is not compared."""
    compared = 0
    for schedule, said in found.items():
        for i, (prompt, want, text) in enumerate(zip(prompts, expected, said, strict=True)):
            at = parting(want, text.ids)
            compared += at
            if at < len(want):
                steps = lead(model, [*prompt, *want[:at]])
                if steps > MARGIN_STEPS:
                    detail = (
                        f"{schedule}: prompt {i} differs at token {at}, where the best logit leads by {steps:.1f} steps"
                    )
                    return Check(name, False, detail)
    total = sum(len(text.ids) for said in found.values() for text in said)
    enough = compared >= total / 4
    return Check(name, enough, f"{compared} of {total} tokens came before a near-tie" + ("" if enough else ": too few"))


def parting(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first tokens are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def lead(model: LlamaForCausalLM, prefix: Sequence[int]) -> float:
    """How far the best logit is above the second, in steps between bfloat16 neighbours at the best."""
    with torch.inference_mode():
        best = model(torch.tensor([prefix], device=model.device)).logits[0, -1].float().topk(2).values.tolist()
    step = 2.0 ** (math.floor(math.log2(abs(best[0]))) - 7)
    return float(best[0] - best[1]) / step
