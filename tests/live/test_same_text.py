"""Over the wire: what was drafted changes neither text nor ids, and the numbers of speculation add up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.live.servers import Stream
from trtspec.client import Client, Pass
from trtspec.decoding.stats import SpeculationStats
from trtspec.types import FinishReason, Method

FLAGS = ("--kv-cache-mib", "8")
DEPTHS: dict[str, dict[str, Any]] = {
    "off": {"speculation": "off"},
    "default": {},
    "on": {"speculation": "on"},
    "depth 1": {"speculation": "on", "max_draft_tokens": 1},
    "depth 8": {"speculation": "on", "max_draft_tokens": 8},
}
PROMPT = tuple(range(200, 220))
"""Its greedy text comes back to what it said, so drafts of many lengths are accepted."""
GREEDY: dict[str, Any] = {"max_tokens": 150, "ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize("prompt", ["the answer", "naïve 日本", [70]], ids=["words", "other letters", "one id"])
async def test_seeded_text_at_temperature_08_is_the_same_at_every_depth(
    client: Client, prompt: str | list[int]
) -> None:
    options = {"max_tokens": 100, "ignore_eos": True, "temperature": 0.8, "seed": 2**64 - 1}
    answers = {name: await client.complete(prompt, **options, **depth) for name, depth in DEPTHS.items()}
    plain = answers["off"]
    assert len(plain.token_ids) == 100 and plain.accepted.method is Method.NONE
    for name, answer in answers.items():
        assert (answer.token_ids, answer.text) == (plain.token_ids, plain.text), name
        assert answer.accepted.seed == 2**64 - 1
    stats = answers["depth 8"].finished.stats
    assert stats and stats.accepted > 0, "nothing was drafted that passed, so this shows nothing"
    assert [answers[name].accepted.max_draft_tokens for name in DEPTHS] == [0, 8, 8, 1, 8]
    other = await client.complete(prompt, **options | {"seed": 5})
    assert other.token_ids != plain.token_ids


async def test_a_request_without_a_seed_is_told_one_that_gives_the_same_text(client: Client) -> None:
    options = {"max_tokens": 60, "ignore_eos": True, "temperature": 0.8}
    drawn = await client.complete("the answer", **options)
    other = await client.complete("the answer", **options)
    repeated = await client.complete("the answer", **options, seed=drawn.accepted.seed, speculation="off")
    assert (repeated.token_ids, repeated.text) == (drawn.token_ids, drawn.text)
    assert drawn.accepted.seed != other.accepted.seed and drawn.token_ids != other.token_ids


def ends_inside_runs(passes: list[Pass]) -> list[int]:
    """Token counts that end strictly within the accepted part of a pass."""
    ends, before = [], 0
    for record in passes:
        ends += range(before + 2, before + record.accepted)
        before += record.emitted
    return ends


def stop_string(text: str) -> str:
    """The shortest ending of a text that is nowhere else in it."""
    return next(text[start:] for start in reversed(range(len(text))) if text.find(text[start:]) == start)


async def test_a_stop_string_inside_an_accepted_run_ends_text_ids_and_usage_alike(client: Client) -> None:
    whole = await Stream(client, PROMPT, **GREEDY, granularity="token").end()
    by_token = [chunk.text for chunk in whole.chunks]
    ends = [end for end in ends_inside_runs(whole.passes) if by_token[end - 1]]
    assert len(by_token) == 150 and len(ends) >= 4, "too few tokens inside accepted runs for this to show anything"
    for end in ends[:: len(ends) // 4]:
        said = "".join(by_token[:end])
        stop = stop_string(said)
        for stream in await on_and_off(client, PROMPT, stop=[stop]):
            assert stream.finished and stream.finished.reason is FinishReason.STOP
            assert stream.finished.stop_string == stop
            assert stream.text == said.removesuffix(stop)
            assert stream.ids == whole.ids[:end]
            check_numbers(stream)


async def test_a_stop_token_inside_an_accepted_run_is_the_last_one_delivered_and_counted(client: Client) -> None:
    # Drafts copied from the prompt bring tokens that the answer has not had yet.
    said = await Stream(client, PROMPT, **GREEDY).end()
    prompt = [*PROMPT, *said.ids]
    whole = await Stream(client, prompt, **GREEDY).end()
    fresh = [end for end in ends_inside_runs(whole.passes) if whole.ids.index(whole.ids[end - 1]) == end - 1]
    assert fresh, "no such token, so this would show nothing"
    for end in fresh[:2]:
        stop = whole.ids[end - 1]
        for stream in await on_and_off(client, prompt, stop_token_ids=[stop]):
            assert stream.finished and stream.finished.reason is FinishReason.STOP
            assert stream.finished.stop_token_id == stop
            assert stream.ids == whole.ids[:end]
            check_numbers(stream)


async def on_and_off(client: Client, prompt: Sequence[int], **stops: Any) -> tuple[Stream, Stream]:
    """The same request with drafts, whose last pass must have been cut inside its draft, and without."""
    drafted = await Stream(client, prompt, **GREEDY, **stops, speculation="on").end()
    last = drafted.passes[-1]
    assert last.cut and last.accepted == last.emitted == last.drafted >= 2
    return drafted, await Stream(client, prompt, **GREEDY, **stops, speculation="off").end()


@pytest.mark.parametrize("temperature", [0, 0.3])
@pytest.mark.parametrize("depth", [name for name in DEPTHS if name != "default"])
async def test_the_numbers_of_the_chunks_add_up_to_those_of_the_end(
    client: Client, temperature: float, depth: str
) -> None:
    stream = await Stream(
        client, PROMPT, **GREEDY | {"temperature": temperature, "max_tokens": 100}, seed=3, **DEPTHS[depth]
    ).end()
    stats = check_numbers(stream)
    assert (stats.accepted > 0) is (depth != "off")
    assert len(stats.drafted_at) == {"off": 0, "on": 8, "depth 1": 1, "depth 8": 8}[depth]


def check_numbers(stream: Stream) -> SpeculationStats:
    """Assert all that holds between ids, passes and totals; gives the totals."""
    assert stream.finished and stream.finished.stats
    first, *decode = stream.passes
    stats, steps = stream.finished.stats, [record for record in decode if record.drafted]
    assert stream.finished.completion_tokens == len(stream.ids) == sum(record.emitted for record in stream.passes)
    assert (first.emitted, first.drafted) == (1, 0) and stats.prefill_tokens == 1
    assert stats.completion_tokens == 1 + stats.emitted == len(stream.ids)
    assert stats.decode_passes == len(decode) and stats.spec_steps == len(steps)
    for name in ("drafted", "accepted", "verified_nodes", "emitted"):
        assert getattr(stats, name) == sum(getattr(record, name) for record in decode), name
    assert stats.rejected_steps == sum(record.accepted < record.drafted and not record.cut for record in steps)
    for length, count in enumerate(stats.histogram):
        assert count == sum(record.accepted == length for record in steps)
    for at, (drafted, accepted) in enumerate(zip(stats.drafted_at, stats.accepted_at, strict=False)):
        assert drafted == sum(record.drafted > at for record in steps)
        assert accepted == sum(record.accepted > at for record in steps)
    assert all(0 <= record.accepted <= record.drafted == record.verified_nodes for record in decode)
    assert all(record.emitted <= record.accepted + 1 for record in decode)
    assert [record.index for record in stream.passes] == sorted({record.index for record in stream.passes})
    stats.check()
    return stats
