"""OpenVINO GenAI's continuous-batching pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import openvino
import openvino_genai

from scripts.bench.peers.jobs import Generate, Job, Work

DRAFT_TOKENS, NGRAM = 5, 3
CACHE_GIB = 2


@contextmanager
def opened(job: Job) -> Iterator[Generate]:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs = CACHE_GIB, job.concurrency
    properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": job.threads}
    if job.speculates:
        properties["prompt_lookup"] = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(job.model, scheduler, "CPU", properties)

    def generate(work: Work) -> int:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = work.max_new_tokens, work.ignore_eos, False
        config.set_eos_token_id(job.eos_ids[0])
        if job.speculates:
            config.num_assistant_tokens = job.options.get("draft_tokens", DRAFT_TOKENS)
            config.max_ngram_size = NGRAM
        return _keep_in_flight(pipeline, work.prompts, config, job.concurrency)

    yield generate


def _keep_in_flight(pipeline: Any, prompts: Sequence[Sequence[int]], config: Any, concurrency: int) -> int:
    """Tokens of all prompts, so many at a time: `max_num_seqs` alone does not hold the others back."""
    waiting = deque(enumerate(prompts))
    live: list[Any] = []
    tokens = 0
    while waiting or live:
        while waiting and len(live) < concurrency:
            number, prompt = waiting.popleft()
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            live.append(pipeline.add_request(number, ids, config))
        pipeline.step()
        ended = [handle for handle in live if handle.get_status() == openvino_genai.GenerationStatus.FINISHED]
        live = [handle for handle in live if handle not in ended]
        tokens += sum(len(output.generated_ids) for handle in ended for output in handle.read_all())
    return tokens
