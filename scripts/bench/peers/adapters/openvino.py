"""OpenVINO GenAI's continuous-batching pipeline."""

from __future__ import annotations

from collections.abc import Iterator
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
            config.num_assistant_tokens, config.max_ngram_size = DRAFT_TOKENS, NGRAM
        prompts = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in work.prompts]
        results = pipeline.generate(prompts, [config] * len(prompts))
        return sum(len(ids) for result in results for ids in result.m_generation_ids)

    yield generate
