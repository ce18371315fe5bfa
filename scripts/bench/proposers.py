"""Tokens per pass and speed of every proposer on `prompts.jsonl`: greedy, one request at a time, in one run.

    python -m scripts.bench.proposers --output scripts/bench/proposers.md

Engines and configurations are those of `proposers.json`; an engine that is missing is built. The configurations of one
engine are open beside the engine of `none`, and all take turns prompt by prompt, so that what disturbs the machine
disturbs them all. Times are those of passes that decode; prefill is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track

import builders.build
from builders.training.conversations import Template
from scripts.bench.peers.machine import cpu_name
from scripts.bench.proposers_report import Answered, Measured, report
from trtspec import generation, manifest
from trtspec.config import EngineOptions
from trtspec.decoding.draft import Draft
from trtspec.decoding.proposer import BatchView, Proposer
from trtspec.executors.opened import OpenedEngine, open_engine
from trtspec.generation import TOKENIZER
from trtspec.openmp import be_considerate
from trtspec.types import Request, StepOutput

be_considerate()  # as the process of an engine is
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


@dataclass(frozen=True)
class Opened:
    """An engine whose proposing is timed."""

    engine: OpenedEngine
    clock: Clock


def build(method: str, settings: Mapping[str, Any], folder: Path, dtype: str) -> Path:
    """The engine of the demo model for a method, deep and wide enough for what is measured of it."""
    directory = folder / method
    speculative = json.dumps({"method": method, **settings})
    argv = ["--method", method, "--dtype", dtype, "--output", str(directory)]
    if code := builders.build.main([*argv, "--speculative-config", speculative]):
        sys.exit(code)
    return directory


def open_configuration(item: Mapping[str, Any], folder: Path) -> Opened:
    speculative = {"method": item["engine"], **item.get("speculative", {})}
    options = EngineOptions(max_batch_size=1, kv_cache_mib=64, speculative=speculative)
    opened = open_engine(folder / item["engine"], options)
    if not isinstance(opened, OpenedEngine):
        raise TypeError("only embedded engines have a proposer to time")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=Path, default=Path("engines/bench"), help="(default: %(default)s)")
    parser.add_argument("--configurations", type=Path, default=HERE / "proposers.json", metavar="FILE.json")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="(default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="measure configurations whose name contains it")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="write the report to a file too")
    options = parser.parse_args()
    asked = json.loads(options.configurations.read_text())
    items = [item for item in asked["configurations"] if options.only in item["name"]]
    folder = options.engines / options.dtype
    engines = {method: build(method, asked["engines"][method], folder, options.dtype) for method in needed(items)}
    prompts = read_prompts(engines["none"])
    ends = generation.read(engines["none"]).eos_ids
    baseline = open_configuration({"engine": "none"}, folder)
    groups = [list(group) for _, group in groupby(items, key=itemgetter("engine"))]
    results = [found for group in groups for found in measure(group, baseline, prompts, ends, folder)]
    found = manifest.read(engines["none"])
    conditions = f"{cpu_name()}; {found.runner} runner, {found.dtype}, greedy,\n{TOKENS} tokens at most"
    text = report(results, slices_of(prompts), conditions)
    print(text)
    if options.output:
        options.output.write_text(text)


def needed(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """The methods of some configurations, and the baseline."""
    return list(dict.fromkeys(["none", *(item["engine"] for item in items)]))


def slices_of(prompts: Sequence[Prompt]) -> Mapping[str, Sequence[str]]:
    """The names of the prompts by slice."""
    slices: dict[str, list[str]] = defaultdict(list)
    for prompt in prompts:
        slices[prompt.slice].append(prompt.name)
    return slices


def measure(
    items: Sequence[Mapping[str, Any]], baseline: Opened, prompts: Sequence[Prompt], ends: frozenset[int], folder: Path
) -> list[Measured]:
    """Configurations of one engine, and `none` beside them."""
    opened = {item["name"]: open_configuration(item, folder) for item in items}
    answers: dict[str, dict[str, Answered]] = {name: {} for name in opened}
    plain = {}
    for prompt in track(prompts, f"{items[0]['engine']:<12}", console=Console(stderr=True)):
        plain[prompt.name] = answer(baseline, prompt.name, prompt.token_ids, ends)
        for name, engine in opened.items():
            answers[name][prompt.name] = answer(engine, prompt.name, prompt.token_ids, ends)
    return [Measured(name, answers[name], plain) for name in opened]


def read_prompts(folder: Path) -> list[Prompt]:
    from transformers import AutoTokenizer

    template = Template(AutoTokenizer.from_pretrained(folder / TOKENIZER))
    lines = map(json.loads, (HERE / "prompts.jsonl").read_text().splitlines())
    return [Prompt(item["id"], item["slice"], template.prompt(item["prompt"])) for item in lines]


if __name__ == "__main__":
    main()
