"""What tests of drafts from outside have in common: a target whose texts repeat themselves, and requests for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from safetensors.torch import load_file, save_file

from builders.build import main
from tests.engines import Collected, one_by_one
from tests.fakes.installed import need_plugins
from tests.models import tiny_llama
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.types import Request, SamplingParams

PROMPT = (40, 50, 60, 40, 50, 60, 40)
QUIET = 0.001
"""Of what attention adds: the last token says nearly everything of the next one, so that texts repeat themselves."""
NUCLEUS = SamplingParams(temperature=0.3, top_p=0.3)
EMBEDDED = EngineOptions(kv_cache_mib=8, threads=1)


def quiet_llama(directory: Path) -> Path:
    weights = tiny_llama(directory, seed=5, max_positions=512) / "model.safetensors"
    tensors = load_file(weights)
    quiet = {name: tensor * QUIET for name, tensor in tensors.items() if name.endswith("o_proj.weight")}
    save_file(tensors | quiet, weights, metadata={"format": "pt"})
    return weights.parent


class Folders(dict[str, Path]):
    """Engine folders by method, each built when it is first asked for."""

    def __init__(self, build: Callable[[str], Path]) -> None:
        super().__init__()
        self._build = build

    def __missing__(self, method: str) -> Path:
        """In a thread: the builder runs an event loop of its own, and a test that asks may run in one."""
        with ThreadPoolExecutor(1) as thread:
            self[method] = thread.submit(self._build, method).result()
        return self[method]


def compiled(model: Path, method: str, output: Path, *flags: str) -> Path:
    """An engine folder."""
    if not flags:
        need_plugins()
    argv = ["--backend", "tensorrt_llm", "--target", str(model), "--max-batch-size", "4", "--max-seq-len", "256"]
    argv += ["--timing-cache", str(output.parent / "timings"), "--method", method, "--output", str(output), *flags]
    assert main([*argv, *(["--draft", str(model)] if method == "draft_model" else [])]) == 0
    return output


def embedded(model: Path, output: Path) -> Path:
    argv = ["--method", "ngram", "--dtype", "float32", "--runner", "eager", "--target", str(model)]
    assert main([*argv, "--output", str(output)]) == 0
    return output


@asynccontextmanager
async def opened(folder: Path, options: EngineOptions | None = None) -> AsyncIterator[Executor]:
    """In this process, so that the engine's own integrity is asserted when it is closed."""
    executor = await open_executor(folder, options or EngineOptions(), in_process=True)
    try:
        yield executor
    finally:
        await executor.aclose()


def ask(name: str = "a", max_tokens: int = 40, depth: int = 8, **changes: object) -> Request:
    return Request(name, **{"prompt": PROMPT, "max_tokens": max_tokens, "max_draft_tokens": depth, **changes})


async def expected(folder: Path, requests: Sequence[Request]) -> list[Collected]:
    """Of the embedded engine."""
    async with opened(folder, EMBEDDED) as executor:
        return await one_by_one(executor, requests)
