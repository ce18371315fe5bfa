"""Each method in each flow: built from small models, served in a worker process, beside text without speculation."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builders.build import main as build
from scripts.gpu_check.drafters import seen_texts, write_eagle, write_eagle3, write_medusa
from scripts.gpu_check.modules import fitted_module, write_glm
from scripts.gpu_check.running import BATCH, Text, opened, requests, run
from scripts.gpu_check.subject import Prompt, Size, Subject, make_model
from trtspec.config import EngineOptions
from trtspec.decoding.stats import SpeculationStats

LLAMA, GLM = "Llama", "GLM-4.5"
"""Targets: the second one has a module for multi-token prediction."""
_TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
_CHAIN = {"num_speculative_tokens": 3}
TREE, GROWING = {**_CHAIN, "tree": _TREE}, {**_CHAIN, "dynamic_tree": True, "max_tree_nodes": 8, "tree_width": 4}


@dataclass(frozen=True, slots=True)
class Case:
    """One engine to build."""

    flow: str
    config: Mapping[str, Any]
    name: str = ""
    target: str = LLAMA

    @property
    def method(self) -> str:
        return str(self.config["method"])

    def __str__(self) -> str:
        target = "" if self.target == LLAMA else f" of {self.target}"
        return f"{self.name or self.method}{target} ({self.flow})"


CASES = (
    Case("engine", {"method": "none"}),
    Case("engine", {"method": "medusa", **TREE}),
    Case("engine", {"method": "eagle", **TREE}),
    Case("engine", {"method": "eagle", **GROWING}, "eagle, growing tree"),
    Case("engine", {"method": "lookahead"}),
    Case("engine", {"method": "ngram", "num_speculative_tokens": 4}),
    Case("engine", {"method": "draft_model", **_CHAIN}),
    Case("engine", {"method": "ngram", "num_speculative_tokens": 4, "acceptance": "engine"}, "ngram by the engine"),
    Case("engine", {"method": "draft_model", **_CHAIN, "acceptance": "engine"}, "draft_model by the engine"),
    Case("pytorch", {"method": "none"}),
    Case("pytorch", {"method": "ngram", "num_speculative_tokens": 4}),
    Case("pytorch", {"method": "draft_model", **_CHAIN}),
    Case("pytorch", {"method": "eagle3", **_CHAIN}),
    Case("pytorch", {"method": "none"}, target=GLM),
    Case("pytorch", {"method": "mtp", **_CHAIN}, target=GLM),
)
"""Without speculation first in each flow and of each target: the others are compared with it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case."""

    case: Case
    error: str | None = None
    texts: Sequence[Text] = ()
    seconds: float = 0.0

    @property
    def stats(self) -> SpeculationStats:
        return SpeculationStats.of([record for text in self.texts for record in text.passes])

    @property
    def tokens_per_second(self) -> float:
        return sum(len(text.ids) for text in self.texts) / self.seconds if self.seconds else 0.0


def make_targets(size: Size, root: Path, prompts: int) -> tuple[dict[str, Path], list[Prompt]]:
    """The folder of each target, with drafters beside them, and the prompts that those are right about."""
    subject = make_model(size, root)
    asked = subject.prompts(prompts)
    write_drafters(subject, root, asked)
    plain = make_model(replace(size, family="qwen3", name=f"{size.name}-plain"), root).model
    write_glm(root / "glm", plain, fitted_module(plain, seen_texts(plain, asked)))
    return {LLAMA: subject.model, GLM: root / "glm"}, asked


def write_drafters(subject: Subject, root: Path, prompts: Sequence[Prompt]) -> None:
    """Heads and layers that are right about the prompts; the target is its own draft model."""
    seen = seen_texts(subject.model, prompts)
    write_medusa(root / "medusa", subject.model, seen, heads=3)
    write_eagle(root / "eagle", subject.model, seen)
    write_eagle3(root / "eagle3", subject.model, seen)
    (root / "draft_model").symlink_to(subject.model, target_is_directory=True)


def try_case(case: Case, target: Path, root: Path, prompts: Sequence[Prompt], tokens: int, dtype: str) -> Outcome:
    """Build and run; whatever goes wrong is told, and the next case is tried."""
    output = root / "engines" / str(CASES.index(case))
    try:
        if (told := _build(case, target, root, output, dtype)) is not None:
            return Outcome(case, told)
        texts, seconds = asyncio.run(_measured(case, output, prompts, tokens))
    except Exception as error:  # the report is of what happened, whatever it was
        return Outcome(case, f"{type(error).__name__}: {error}")
    return Outcome(case, None, texts, seconds)


async def _measured(case: Case, engine: Path, prompts: Sequence[Prompt], tokens: int) -> tuple[list[Text], float]:
    """All prompts twice; the first run warms, the second one counts."""
    depth = int(case.config.get("num_speculative_tokens", 2 if case.method == "lookahead" else 0))
    async with opened(engine, EngineOptions(), in_process=False) as executor:
        await run(executor, requests(prompts, tokens, depth), BATCH)
        started = time.perf_counter()
        texts = await run(executor, requests(prompts, tokens, depth), BATCH)
        return texts, time.perf_counter() - started


def _build(case: Case, target: Path, root: Path, output: Path, dtype: str) -> str | None:
    """The builder's last words where it failed."""
    argv = ["--backend", "tensorrt_llm", "--flow", case.flow, "--method", case.method, "--dtype", dtype]
    argv += ["--target", str(target), "--output", str(output), "--speculative-config", json.dumps(case.config)]
    argv += ["--max-batch-size", str(BATCH), "--timing-cache", str(root / "timings")]
    if (drafter := root / case.method).exists():
        argv += ["--draft", str(drafter), "--allow-unverified-target"]
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = build(argv)
    return None if code == 0 else f"the build failed with exit code {code}: {said.getvalue().strip()[-2000:]}"
