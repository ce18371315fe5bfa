"""The smoke stage's comparison, against a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from builders.smoke import Smoke, check, compare
from trtspec.errors import EngineFault
from trtspec.types import (
    EngineInfo,
    EngineStats,
    Finish,
    FinishReason,
    Health,
    PassRecord,
    Request,
    RequestEvent,
    Started,
    StepOutput,
)


class ScriptedExecutor:
    """Answers with the tokens of its script, in two outputs, and remembers what it was asked."""

    def __init__(self, plain: tuple[int, ...], drafted: tuple[int, ...]) -> None:
        self.script = {False: plain, True: drafted}
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> AsyncIterator[RequestEvent]:
        self.requests.append(request)
        tokens = self.script[request.max_draft_tokens > 0]
        yield Started(request.request_id)
        yield StepOutput(request.request_id, 0, tokens[:1], (PassRecord(0, prefill=True),))
        yield StepOutput(request.request_id, 0, tokens[1:], (PassRecord(1),), Finish(FinishReason.LENGTH))

    def info(self) -> EngineInfo:
        raise AssertionError("the comparison needs no facts of the engine")

    async def stats(self) -> EngineStats:
        return EngineStats()

    def health(self) -> Health:
        return Health.SERVING

    async def wait_for_change(self, health: Health) -> Health:
        return Health.FAILED

    async def aclose(self) -> None:
        pass


async def test_same_greedy_prompt_runs_without_and_with_drafts() -> None:
    executor = ScriptedExecutor((1, 2, 3), (1, 2, 4))
    assert await compare(executor, (7, 8), 3, draft_tokens=5) == ((1, 2, 3), (1, 2, 4))
    plain, drafted = executor.requests
    assert (plain.max_draft_tokens, drafted.max_draft_tokens) == (0, 5)
    assert plain.prompt == drafted.prompt == (7, 8)
    assert plain.max_tokens == drafted.max_tokens == 3
    assert plain.sampling.greedy and drafted.sampling.greedy and not plain.eos_ids


def test_equal_tokens_pass() -> None:
    smoke = Smoke("hi", (1, 2, 3), (1, 2, 3))
    check(smoke, "float32")
    assert smoke.to_dict() == {"tokens": 3, "equal": True, "text": "hi"}


@pytest.mark.parametrize(
    ("drafted", "position"), [((9, 2, 3), 0), ((1, 2, 9), 2), ((1, 2), 2), ((1, 2, 3, 4), 3), ((), 0)]
)
def test_difference_is_an_error_in_float32_and_a_record_in_bfloat16(drafted: tuple[int, ...], position: int) -> None:
    smoke = Smoke("hi", (1, 2, 3), drafted)
    with pytest.raises(EngineFault, match=f"token {position} differs with speculation"):
        check(smoke, "float32")
    check(smoke, "bfloat16")
    assert smoke.to_dict() == {"tokens": 3, "equal": False, "text": "hi", "first_difference": position}
