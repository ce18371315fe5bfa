"""llama.cpp's server core in this process, through xllamacpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import xllamacpp

from scripts.bench.peers.jobs import CONTEXT_TOKENS, Generate, Job, Work


@contextmanager
def opened(job: Job) -> Iterator[Generate]:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = job.model
    parameters.n_parallel = job.concurrency
    parameters.n_ctx = CONTEXT_TOKENS * job.concurrency
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = job.threads
    if job.speculates:
        parameters.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    server = xllamacpp.Server(parameters)

    def generate(work: Work) -> int:
        def one(prompt: Sequence[int]) -> int:
            request = {
                "prompt": list(prompt),
                "max_tokens": work.max_new_tokens,
                "temperature": 0,
                "ignore_eos": work.ignore_eos,
            }
            reply = server.handle_completions(request)
            if "usage" not in reply:
                raise RuntimeError(f"llama.cpp answered {reply}")
            return int(reply["usage"]["completion_tokens"])

        return sum(pool.map(one, work.prompts))

    with ThreadPoolExecutor(job.concurrency) as pool:
        yield generate
