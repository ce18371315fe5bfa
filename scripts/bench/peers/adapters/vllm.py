"""vLLM's CPU backend through its offline interface, continuous batching included."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.bench.peers.jobs import CONTEXT_TOKENS, Generate, Job, Work

SPECULATION = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
KV_CACHE_GIB = 2


@contextmanager
def opened(job: Job) -> Iterator[Generate]:
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: job.threads]))
    # Read when vLLM is imported, the last one by the processes it starts; its manual asks for that library.
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE=str(KV_CACHE_GIB),
        VLLM_CPU_OMP_THREADS_BIND=cores,
        LD_PRELOAD=str(Path(sys.prefix) / "lib" / "libiomp5.so"),
    )
    from vllm import LLM, SamplingParams

    extra: dict[str, Any] = {"speculative_config": SPECULATION} if job.speculates else {}
    llm = LLM(
        job.model,
        dtype=job.options["dtype"],
        max_model_len=CONTEXT_TOKENS,
        max_num_seqs=job.concurrency,
        **extra,
    )

    def generate(work: Work) -> int:
        sampling = SamplingParams(
            temperature=0, max_tokens=work.max_new_tokens, ignore_eos=work.ignore_eos, detokenize=False
        )
        prompts = [{"prompt_token_ids": list(prompt)} for prompt in work.prompts]
        results = llm.generate(prompts, sampling, use_tqdm=False)
        return sum(len(output.token_ids) for result in results for output in result.outputs)

    yield generate
