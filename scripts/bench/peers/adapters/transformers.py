"""transformers: `generate`, in static batches of the job's concurrency; prompt lookup works on single prompts only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from scripts.bench.peers.jobs import Generate, Job, Work

LOOKUP_TOKENS = 5
"""Drafted at a time, as in the library's own example."""


@contextmanager
def opened(job: Job) -> Iterator[Generate]:
    torch.set_num_threads(job.threads)
    dtype = getattr(torch, job.options["dtype"])
    model: Any = AutoModelForCausalLM.from_pretrained(job.model, dtype=dtype).eval()
    extra = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if job.speculates else {}

    def generate(work: Work) -> int:
        least = work.max_new_tokens if work.ignore_eos else 0
        settings = {"max_new_tokens": work.max_new_tokens, "min_new_tokens": least, "do_sample": False, **extra}
        total = 0
        for start in range(0, len(work.prompts), job.concurrency):
            ids, mask = _padded(work.prompts[start : start + job.concurrency], job.eos_ids[0])
            rows = model.generate(ids, attention_mask=mask, pad_token_id=job.eos_ids[0], **settings)
            total += sum(_generated(row[ids.shape[1] :].tolist(), job.eos_ids, least) for row in rows)
        return total

    yield generate


def _padded(prompts: Sequence[Sequence[int]], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, [B, T], padded on the left."""
    width = max(map(len, prompts))
    ids = [[padding] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids), torch.tensor(mask)


def _generated(ids: Sequence[int], eos_ids: Sequence[int], least: int) -> int:
    """Tokens up to the end of the text, which counts; what follows is padding."""
    before = sum(1 for _ in takewhile(lambda id_: id_ not in eos_ids, ids))
    return max(min(before + 1, len(ids)), least)
