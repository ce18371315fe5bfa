"""Tokens per pass and speed of every proposer on `prompts.jsonl`: greedy, one request at a time, in one run.

    for method in none ngram medusa draft_model mtp eagle eagle3; do python -m builders.build --method $method; done
    python scripts/bench/proposers.py --engines engines --output scripts/bench/proposers.md

Configurations are those of `proposers.json`. Each is open beside the engine of `none`, and the two take turns prompt by
prompt, so that what disturbs the machine disturbs both. Times are those of passes that decode; prefill is left out.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track

from builders.training.conversations import Template
from scripts.bench.linear_candidates import cpu_name
from trtspec import manifest
from trtspec.config import EngineOptions
from trtspec.decoding.draft import Draft
from trtspec.decoding.proposer import BatchView, Proposer
from trtspec.decoding.stats import SpeculationStats
from trtspec.executors.opened import OpenedEngine, open_engine
from trtspec.generation import TOKENIZER
from trtspec.types import PassRecord, Request, StepOutput

HERE = Path(__file__).parent
MODEL = "SmolLM2-135M-Instruct"
TOKENS = 128


class Prompt(NamedTuple):
    """One line of the file."""

    name: str
    slice: str
    token_ids: tuple[int, ...]


@dataclass
class Clock:
    """Stands before a proposer and adds up the time it takes."""

    proposer: Proposer
    seconds: float = 0.0

    @property
    def needs(self) -> Any:
        return self.proposer.needs

    def propose(self, view: BatchView) -> Draft:
        started = time.perf_counter()
        try:
            return self.proposer.propose(view)
        finally:
            self.seconds += time.perf_counter() - started


@dataclass
class Answered:
    """What one prompt came to."""

    ids: list[int] = field(default_factory=list)
    passes: list[PassRecord] = field(default_factory=list)
    seconds: float = 0.0
    """Of passes that decode, proposing included."""
    proposing: float = 0.0

    @property
    def stats(self) -> SpeculationStats:
        return SpeculationStats.of(self.passes)


@dataclass(frozen=True)
class Opened:
    """An engine whose proposing is timed."""

    engine: OpenedEngine
    clock: Clock


@dataclass(frozen=True)
class Measured:
    """What a configuration answered, and the engine of `none` beside it, by prompt."""

    name: str
    answers: Mapping[str, Answered]
    plain: Mapping[str, Answered]


def open_configuration(item: Mapping[str, Any], folder: Path) -> Opened:
    directory = folder / f"{MODEL}-{item['engine']}-bfloat16"
    speculative = {"method": item["engine"], **item.get("speculative", {})} if "speculative" in item else None
    opened = open_engine(directory, EngineOptions(max_batch_size=1, kv_cache_mib=64, speculative=speculative))
    clock = Clock(opened.engine._proposer)
    opened.engine._proposer = clock
    return Opened(opened, clock)


def answer(opened: Opened, name: str, prompt: tuple[int, ...], eos_ids: frozenset[int]) -> Answered:
    """Run one prompt alone."""
    engine, clock, result = opened.engine.engine, opened.clock, Answered()
    depth = opened.engine.info.limits.max_draft_tokens
    engine.submit(Request(name, prompt, TOKENS, eos_ids=eos_ids, max_draft_tokens=depth))
    while not engine.idle:
        clock.seconds = 0.0
        started = time.perf_counter()
        begun = engine.begin(time.monotonic())
        assert begun.plan is not None
        events = engine.finish(begun.plan)
        if not begun.plan.rows[0].prefill:
            result.seconds += time.perf_counter() - started
            result.proposing += clock.seconds
        for event in events:
            assert isinstance(event, StepOutput), event
            result.ids += event.token_ids
            result.passes += event.passes
    return result


def tokens_per_pass(answers: Sequence[Answered]) -> float:
    total = sum((item.stats for item in answers), SpeculationStats())
    return total.emitted / total.decode_passes


def tokens_row(measured: Measured, slices: Mapping[str, Sequence[str]]) -> str:
    """Tokens per pass over all prompts and in each slice."""
    parts = [[measured.answers[name] for name in names] for names in slices.values()]
    cells = [f"{tokens_per_pass(part):.2f}" for part in [list(measured.answers.values()), *parts]]
    return f"| {measured.name} | {' | '.join(cells)} |"


def speed_row(measured: Measured, slices: Mapping[str, Sequence[str]]) -> str:
    """Speed, its parts, and speed-ups over all prompts and in each slice."""
    answers = list(measured.answers.values())
    passes = sum(item.stats.decode_passes for item in answers)
    seconds, proposing = (sum(getattr(item, what) for item in answers) for what in ("seconds", "proposing"))
    groups = [list(measured.answers), *slices.values()]
    rates = [[rate([of[name] for name in names]) for of in (measured.answers, measured.plain)] for names in groups]
    equal = sum(measured.answers[name].ids == measured.plain[name].ids for name in measured.plain)
    times = f"{1e3 * (seconds - proposing) / passes:.1f} | {1e3 * proposing / passes:.1f}"
    ups = " | ".join(f"{mine / plain:.2f}" for mine, plain in rates)
    return f"| {measured.name} | {rates[0][0]:.1f} | {times} | {equal} of {len(answers)} | {ups} |"


def rate(answers: Sequence[Answered]) -> float:
    """Tokens per second."""
    return sum(item.stats.emitted for item in answers) / sum(item.seconds for item in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=Path, default=Path("engines"), help="where the builds are (default: engines)")
    parser.add_argument("--configurations", type=Path, default=HERE / "proposers.json", help="JSON list")
    parser.add_argument("--only", default="", help="names to measure, beside none: those that contain this text")
    parser.add_argument("--output", type=Path, help="write the report to a file too")
    options = parser.parse_args()
    items = json.loads(options.configurations.read_text())
    wanted = [item for item in items if item["name"] == "none" or options.only in item["name"]]
    there = [item for item in wanted if (options.engines / f"{MODEL}-{item['engine']}-bfloat16").is_dir()]
    folder = options.engines / f"{MODEL}-none-bfloat16"
    prompts = read_prompts(folder)
    ends = frozenset(json.loads((folder / "generation.json").read_text())["eos_token_ids"])
    baseline = open_configuration({"name": "none", "engine": "none"}, options.engines)
    results = [measure(item, baseline, prompts, ends, options.engines) for item in there]
    missing = [item["name"] for item in wanted if item not in there]
    text = report(results, prompts, folder, missing)
    print(text)
    if options.output:
        options.output.write_text(text)


def measure(
    item: Mapping[str, Any], baseline: Opened, prompts: Sequence[Prompt], ends: frozenset[int], folder: Path
) -> Measured:
    opened = open_configuration(item, folder)
    answers, plain = {}, {}
    for prompt in track(prompts, f"{item['name']:<44}", console=Console(stderr=True)):
        plain[prompt.name] = answer(baseline, prompt.name, prompt.token_ids, ends)
        answers[prompt.name] = answer(opened, prompt.name, prompt.token_ids, ends)
    return Measured(item["name"], answers, plain)


def read_prompts(folder: Path) -> list[Prompt]:
    from transformers import AutoTokenizer

    template = Template(AutoTokenizer.from_pretrained(folder / TOKENIZER))
    lines = map(json.loads, (HERE / "prompts.jsonl").read_text().splitlines())
    return [Prompt(item["id"], item["slice"], template.prompt(item["prompt"])) for item in lines]


def report(results: Sequence[Measured], prompts: Sequence[Prompt], folder: Path, missing: Sequence[str]) -> str:
    slices: dict[str, list[str]] = defaultdict(list)
    for prompt in prompts:
        slices[prompt.slice].append(prompt.name)
    groups = " | ".join(f"{group} ({len(names)})" for group, names in slices.items())
    found = manifest.read(folder)
    lines = [
        "# What each proposer brings",
        "",
        f"Command: `{shlex.join(['python', *sys.argv])}`. {cpu_name()}, {found.runner} runner, {found.dtype}, greedy,",
        f"{TOKENS} tokens at most, {len(prompts)} prompts, one request at a time. No GPU.",
        *([f"Not built, so not measured: {', '.join(missing)}."] if missing else []),
        "",
        "## Tokens per pass",
        "",
        f"| configuration | all | {groups} |",
        f"|---|{'---:|' * (1 + len(slices))}",
        *(tokens_row(item, slices) for item in results),
        "",
        "## Speed",
        "",
        "Of passes that decode, with the speed-up over `none` for all prompts and in each slice. Equal: answers that "
        "are `none`'s token by token; in half precision near-ties may fall either way.",
        "",
        f"| configuration | tokens/s | target pass, ms | proposing, ms a pass | equal | speed-up | {groups} |",
        f"|---|{'---:|' * (5 + len(slices))}",
        *(speed_row(item, slices) for item in results),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
