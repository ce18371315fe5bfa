"""What the scripted engine gives to every request. It knows no server, and runs in the environment of any of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trtspec.types import Finish, FinishReason, PassRecord

FIRST_ID = 300
"""Ids from here on are pieces of words in any tokenizer of a language model."""
PROMPT_IDS = tuple(range(FIRST_ID, FIRST_ID + 16))
DRAFT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Step:
    """What a pass gives to a request."""

    token_ids: tuple[int, ...]
    passes: tuple[PassRecord, ...]
    finish: Finish | None


def steps_of(accepted: int, tokens: int) -> list[Step]:
    """A first token, then `accepted` drafted ones and a bonus in each pass, and `tokens` in all."""
    starts = [0, *range(1, tokens, 1 + accepted), tokens]
    steps = []
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        drafted = DRAFT_TOKENS if accepted and number else 0
        record = PassRecord(number, (1,) * drafted, end - start - 1, end - start, prefill=number == 0)
        finish = Finish(FinishReason.LENGTH) if end == tokens else None
        steps.append(Step(tuple(range(FIRST_ID + start, FIRST_ID + end)), (record,), finish))
    return steps


class Gate:
    """Lets requests go on when so many are there, so that all of them are live at once."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._live = 0
        self._full = asyncio.Event()

    @asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """What a request does behind the gate, which closes when the last one is done."""
        self._live += 1
        if self._live == self._requests:
            self._full.set()
        try:
            await self._full.wait()
            yield
        finally:
            self._live -= 1
            if not self._live:
                self._full.clear()
