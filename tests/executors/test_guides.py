"""Guides in front of a real engine: hostile ones end in the process that tries them, and the engine goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.engines import collect
from tests.executors.conftest import children
from trtspec.config import EngineOptions
from trtspec.errors import InvalidField
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.guides import MAX_GUIDE_BYTES, Guide, GuideKind
from trtspec.types import FinishReason, Request, Started, StepOutput

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

DEEP = '{"type":"array","items":' * 400 + "{}" + "}" * 400
MANY = json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}})
SLOW = '{"type":"array","items":' * 1000 + "{}" + "}" * 1000
"""Takes minutes."""
HOSTILE = {
    "deep schema": (GuideKind.JSON_SCHEMA, DEEP),
    "deeper than a parser goes": (GuideKind.JSON_SCHEMA, "[" * 30_000 + "]" * 30_000),
    "many properties": (GuideKind.JSON_SCHEMA, MANY),
    "references in a circle": (GuideKind.JSON_SCHEMA, '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'),
    "parentheses": (GuideKind.REGEX, "(" * 30_000 + "a" + ")" * 30_000),
    "counts of counts": (GuideKind.REGEX, "((a{1000}){1000}){1000}"),
    "huge count": (GuideKind.REGEX, "a{1000000000}"),
    "any text so often": (GuideKind.REGEX, "(.|\\n){0,20000}"),
    "nested stars": (GuideKind.REGEX, "((a*)*)*b"),
    "ambiguous": (GuideKind.GRAMMAR, 'root ::= root root | "a"'),
    "doubling": (
        GuideKind.GRAMMAR,
        "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)), 'r60 ::= "a"']),
    ),
    "left recursion": (GuideKind.GRAMMAR, "root ::= root"),
    "no end of items": (GuideKind.JSON_SCHEMA, '{"type": "array", "minItems": 100000000}'),
    "huge range": (GuideKind.JSON_SCHEMA, '{"type": "integer", "minimum": 0, "maximum": 99999999999999999999999}'),
    "huge enum": (GuideKind.JSON_SCHEMA, json.dumps({"enum": [f"x{i}" for i in range(6000)]})),
    "nul": (GuideKind.GRAMMAR, 'root ::= "a\0"'),
    "half a character": (GuideKind.REGEX, "\ud800"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor(engine_folder: Path) -> AsyncIterator[Executor]:
    executor = await open_executor(engine_folder, EngineOptions(kv_cache_mib=8, threads=1), in_process=True)
    yield executor
    await executor.aclose()


@pytest.fixture(autouse=True)
def no_process_left() -> None:
    """Those that try guides live as long as the engine."""


def asked(name: str, guide: Guide | None, tokens: int = 20) -> Request:
    return Request(name, (50, 60, 70), tokens, eos_ids=frozenset({0, 2}), max_draft_tokens=4, guide=guide)


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_guide_is_refused_or_bounded_and_others_go_on(executor: Executor, name: str) -> None:
    """While it is tried, another request gets its tokens without waiting for it."""
    guide = Guide(*HOSTILE[name])
    assert len(guide.text) <= MAX_GUIDE_BYTES
    free = asyncio.create_task(collect(executor, asked("free", None)))
    hostile = asyncio.create_task(collect(executor, asked("hostile", guide)))
    assert (await free).finish is not None
    try:
        assert (await hostile).finish is not None, "it is no worse than others"
    except InvalidField as error:
        assert error.details["field"] == guide.field
    good = await collect(executor, asked("good", Guide(GuideKind.REGEX, "a{3}")))
    assert len(good.ids) <= 4 and good.finish is not None and good.finish.reason is FinishReason.EOS


async def test_what_takes_its_whole_time_does_not_hold_others_tokens_back(executor: Executor) -> None:
    """Tokens of a free request come while the guide is still being tried."""
    tried = asyncio.create_task(collect(executor, asked("slow", Guide(GuideKind.JSON_SCHEMA, SLOW))))
    await asyncio.sleep(0)
    got = await collect(executor, asked("free", None, 200))
    assert got.finish is not None and not tried.done()
    cancelled = executor.generate(asked("cancelled", Guide(GuideKind.JSON_SCHEMA, SLOW)))
    waiting = asyncio.ensure_future(anext(cancelled))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    with pytest.raises(InvalidField, match="more than 5 s to compile"):
        await tried
    with pytest.raises(InvalidField, match="more than 5 s to compile"):
        await collect(executor, asked("again", Guide(GuideKind.JSON_SCHEMA, SLOW)))
    assert (await executor.stats()).waiting == 0


async def test_a_refusal_comes_before_the_request_starts(executor: Executor) -> None:
    events = []
    with pytest.raises(InvalidField):
        async for event in executor.generate(asked("bad", Guide(GuideKind.REGEX, "(["))):
            events.append(event)
    assert not events
    good = [event async for event in executor.generate(asked("good", Guide(GuideKind.REGEX, "ab")))]
    assert isinstance(good[0], Started) and all(isinstance(event, StepOutput) for event in good[1:])


async def test_no_process_is_left_behind_not_even_one_that_computes(engine_folder: Path) -> None:
    before = set(children())
    executor = await open_executor(engine_folder, EngineOptions(kv_cache_mib=8, threads=1), in_process=True)
    assert set(children()) == before, "without a guide nothing is started"
    tried = asyncio.create_task(collect(executor, asked("slow", Guide(GuideKind.JSON_SCHEMA, MANY))))
    while set(children()) == before:
        await asyncio.sleep(0.05)
    await executor.aclose()
    await asyncio.gather(tried, return_exceptions=True)
    assert set(children()) == before
