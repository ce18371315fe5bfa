"""What `generate_async` hands out: updated by the engine's thread, read on the event loop that asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from tensorrt_llm._table import Declared


@dataclass(frozen=True)
class Update:
    """What one step adds."""

    tokens: tuple[int, ...] = ()
    iterations: int = 0
    cached_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None


class CompletionOutput(Declared):
    _told = 0
    """Tokens that the reader saw before."""

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def token_ids_diff(self) -> list[int]:
        return list(self.token_ids[self._told :])

    @property
    def text_diff(self) -> str:
        return ""

    @property
    def logprobs_diff(self) -> list[Any]:
        return []


class RequestOutput(Declared):
    """Awaitable, for the end; and async-iterable, for each step, of which late readers get several at once."""

    def __init__(self) -> None:
        raise TypeError("RequestOutput is made by LLM.generate_async")

    @classmethod
    def _made(cls, prompt: list[int], streaming: bool) -> RequestOutput:
        from tensorrt_llm.llmapi import CompletionOutput as Completion

        output = cls.__new__(cls)
        output._values = {
            "request_id": 0,
            "prompt": None,
            "prompt_token_ids": prompt,
            "outputs": [Completion(0)],
            "finished": False,
            "context_logits": None,
            "decoding_iter": 0,
            "cached_tokens": 0,
            "avg_decoded_tokens_per_iter": None,
            "metrics_dict": {},
        }
        output._loop, output._updates = asyncio.get_running_loop(), asyncio.Queue()
        output._streaming, output._aborted, output._cancel = streaming, False, lambda: None
        return output

    _loop: asyncio.AbstractEventLoop
    _updates: asyncio.Queue[Update]
    _streaming: bool
    _aborted: bool
    _cancel: Callable[[], None]

    def _deliver(self, update: Update) -> None:
        """From the engine's thread."""
        with contextlib.suppress(RuntimeError):  # the loop that asked is closed
            self._loop.call_soon_threadsafe(self._updates.put_nowait, update)

    async def _next(self) -> None:
        """Take what is there, or wait for something."""
        completion = self.outputs[0]
        completion._told = len(completion.token_ids)
        self._apply(await self._updates.get())
        while not self._updates.empty():
            self._apply(self._updates.get_nowait())

    def _apply(self, update: Update) -> None:
        from tensorrt_llm.executor.utils import RequestError

        completion, values = self.outputs[0], self._values
        completion.token_ids.extend(update.tokens)
        values["decoding_iter"] = update.iterations
        values["cached_tokens"] = update.cached_tokens
        values["avg_decoded_tokens_per_iter"] = len(completion.token_ids) / max(update.iterations, 1)
        completion.finish_reason, completion.stop_reason = update.finish_reason, update.stop_reason
        values["finished"] = update.finish_reason is not None or update.error is not None
        if update.error is not None:
            raise RequestError(update.error)

    def abort(self) -> None:
        self._aborted = True
        self._cancel()

    def aborted(self) -> bool:
        return self._aborted

    async def aresult(self) -> RequestOutput:
        while not self.finished:
            await self._next()
        return self

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self.aresult().__await__()

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        await self._next()
        return self
