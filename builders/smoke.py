"""The smoke stage: the new engine speaks, and says the same with speculation as without."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.text import TOKENIZER
from trtspec.capabilities import Support, capabilities
from trtspec.config import EngineOptions
from trtspec.errors import EngineFault
from trtspec.executors.base import Executor
from trtspec.manifest import Manifest
from trtspec.types import Request, StepOutput

TOKENS = 16
PROMPT = "one two three four five, one two three four five, one two three"
"""It repeats itself, so that prompt lookup has something to propose."""


@dataclass(frozen=True, slots=True)
class Smoke:
    """Greedy tokens with and without speculation."""

    text: str
    plain: tuple[int, ...] | None
    """None where the engine cannot do without drafts."""
    speculative: tuple[int, ...]

    @property
    def first_difference(self) -> int | None:
        if self.plain is None or self.plain == self.speculative:
            return None
        pairs = enumerate(zip(self.plain, self.speculative, strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(len(self.plain), len(self.speculative)))

    def to_dict(self) -> dict[str, Any]:
        difference = self.first_difference
        told = self.speculative if self.plain is None else self.plain
        equal = None if self.plain is None else difference is None
        result: dict[str, Any] = {"tokens": len(told), "equal": equal, "text": self.text}
        return result if difference is None else {**result, "first_difference": difference}


def run_smoke(directory: Path, manifest: Manifest) -> Smoke:
    """Open the engine and compare; a difference is an error in float32, and a record in half precision."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
    ids = [i for i in tokenizer.encode(PROMPT).ids if i < manifest.vocabulary_size] or [0]
    prompt = tuple(ids[-max(1, manifest.max_context_tokens - TOKENS) :])
    count = min(TOKENS, manifest.max_context_tokens - len(prompt))
    plain, speculative = asyncio.run(_open_and_compare(directory, prompt, count, manifest))
    smoke = Smoke(tokenizer.decode(speculative if plain is None else plain), plain, speculative)
    check(smoke, manifest.dtype)
    return smoke


def check(smoke: Smoke, dtype: str) -> None:
    position = smoke.first_difference
    if position is not None and smoke.plain is not None and dtype == "float32":
        raise EngineFault(
            f"smoke generation: token {position} differs with speculation; plain is {list(smoke.plain)}, "
            f"speculative is {list(smoke.speculative)}; in {dtype} they must be equal"
        )


async def _open_and_compare(
    directory: Path, prompt: tuple[int, ...], count: int, manifest: Manifest
) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """An embedded engine runs in this process; TensorRT-LLM has one of its own."""
    from trtspec.executors import open_executor

    in_process = manifest.backend == "embedded"
    executor = await open_executor(directory, EngineOptions(max_batch_size=1), in_process=in_process)
    draft_tokens, info = manifest.speculative.draft_tokens, executor.info()
    off = capabilities(info.method, info.flow, info.acceptance)["speculation_off"]
    try:
        if off.support is Support.REFUSED:
            return None, await _generate(executor, Request("smoke", prompt, count, max_draft_tokens=draft_tokens))
        return await compare(executor, prompt, count, draft_tokens)
    finally:
        await executor.aclose()


async def compare(
    executor: Executor, prompt: tuple[int, ...], count: int, draft_tokens: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Greedy tokens of the same prompt without and with drafts."""
    plain = await _generate(executor, Request("smoke-plain", prompt, count))
    return plain, await _generate(executor, Request("smoke-drafts", prompt, count, max_draft_tokens=draft_tokens))


async def _generate(executor: Executor, request: Request) -> tuple[int, ...]:
    outputs: Sequence[StepOutput] = [e async for e in executor.generate(request) if isinstance(e, StepOutput)]
    return tuple(token for output in outputs for token in output.token_ids)
