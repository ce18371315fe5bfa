"""Several outputs of a request: each is its own text, and the totals are over all of them."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from tests.fakes import EOS, FakeExecutor, Hold, Pass, Serving, ids_of, script_of, serving
from trtspec.decoding.stats import SpeculationStats
from trtspec.errors import EngineLost
from trtspec.types import PassRecord
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc
from trtspec.v1 import speculation_pb2 as spec

TEXTS = ("abcdef", "é😀 한", "xy")


def executor(*, merge: bool = False) -> FakeExecutor:
    """Runs of differing length for each output."""
    first, *others = (script_of(TEXTS[0], 3, 2), script_of(TEXTS[1], 1, 5, 3), script_of(TEXTS[2], 1))
    return FakeExecutor(first, *others, merge=merge)


def call(server: Serving, **fields: object) -> grpc.aio.UnaryStreamCall:
    message = pb.GenerateRequest(**{"text": "hi", "n": 3, **fields})
    return rpc.InferenceStub(server.channel).Generate(message)


async def ask(server: Serving, **fields: object) -> list[pb.GenerateResponse]:
    return [response async for response in call(server, **fields)]


def texts(responses: Sequence[pb.GenerateResponse]) -> list[str]:
    """Joined text of the chunks of each output."""
    chunks = [response.chunk for response in responses if response.HasField("chunk")]
    return ["".join(chunk.text for chunk in chunks if chunk.output_index == index) for index in range(3)]


def reasons(finished: pb.Finished) -> list[str]:
    assert [output.output_index for output in finished.outputs] == [0, 1, 2]
    return [pb.FinishReason.Name(output.finish_reason).removeprefix("FINISH_REASON_") for output in finished.outputs]


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("granularity", [pb.STREAM_GRANULARITY_STEP, pb.STREAM_GRANULARITY_TOKEN])
async def test_the_deltas_of_each_output_join_to_its_own_whole_text(merge: bool, granularity: int) -> None:
    async with serving(executor(merge=merge)) as server:
        got = await ask(server, stream_options={"granularity": granularity, "include_full_output": True})
        final = await ask(server, stream_options={"granularity": pb.STREAM_GRANULARITY_FINAL})
    assert texts(got) == [output.text for output in got[-1].finished.outputs] == list(TEXTS)
    assert [event.WhichOneof("event") for event in final] == ["accepted", "finished"]
    assert [output.text for output in final[-1].finished.outputs] == list(TEXTS)
    for index, text in enumerate(TEXTS):
        chunks = [event.chunk for event in got[1:-1] if event.chunk.output_index == index]
        assert [id_ for chunk in chunks for id_ in chunk.token_ids] == list(ids_of(text))
        assert list(got[-1].finished.outputs[index].token_ids) == list(ids_of(text))
        assert {record.output_index for chunk in chunks for record in chunk.passes} == {index}


async def test_totals_are_over_all_outputs_and_the_prompt_counts_once() -> None:
    async with serving(executor()) as server:
        got = await ask(server, speculation={"stats_level": spec.STATS_LEVEL_DETAILED})
    finished = got[-1].finished
    counts = [len(ids_of(text)) for text in TEXTS]
    assert [output.completion_token_count for output in finished.outputs] == counts
    assert finished.usage.completion_token_count == sum(counts)
    assert finished.usage.prompt_token_count == len(ids_of("hi"))
    assert finished.usage.total_token_count == sum(counts) + len(ids_of("hi"))
    records = [record for event in got[1:-1] for record in event.chunk.passes]
    told = finished.speculation
    expected = SpeculationStats.of(
        PassRecord(r.pass_index, (1,) * r.drafted_count, r.accepted_count, r.emitted_count, r.prefill, r.cut)
        for r in records
    )
    assert (told.decode_passes, told.drafted_count, told.accepted_count, told.emitted_count) == (
        expected.decode_passes,
        expected.drafted,
        expected.accepted,
        expected.emitted,
    )
    assert tuple(told.accepted_length_histogram) == expected.histogram and told.emitted_count == sum(counts) - 3
    order = [(record.pass_index, record.output_index) for record in told.passes]
    assert order == sorted(order) and len(order) == len(records) and not told.passes_truncated


@pytest.mark.parametrize("cached", [None, 0, 2])
async def test_cached_tokens_are_told_where_the_engine_knows(cached: int | None) -> None:
    async with serving(FakeExecutor(script_of("ab", 1), cached_tokens=cached)) as server:
        usage = (await ask(server, n=1))[-1].finished.usage
    assert (usage.cached_prompt_token_count if usage.HasField("cached_prompt_token_count") else None) == cached


async def test_an_output_that_a_stop_string_ended_takes_nothing_more_while_others_go_on() -> None:
    engine = FakeExecutor(script_of("a.bcdefg", *[1] * 7), script_of("rstuv", *[1] * 4), script_of("wx.yz", 2, 2))
    async with serving(engine) as server:
        got = await ask(server, stopping={"stop_strings": ["."]}, stream_options={"include_full_output": True})
    finished = got[-1].finished
    assert texts(got) == [output.text for output in finished.outputs] == ["a", "rstuv", "wx"]
    assert reasons(finished) == ["STOP", "LENGTH", "STOP"]
    assert [output.stop_string for output in finished.outputs] == [".", "", "."]
    assert [output.completion_token_count for output in finished.outputs] == [2, 5, 3]
    assert finished.usage.completion_token_count == 10 and finished.speculation.emitted_count == 7
    assert len(engine.closed) == 1


async def test_the_engine_is_told_to_end_as_soon_as_every_output_ended() -> None:
    """Were it not, the request would wait for the hold, which never ends."""
    script = [Pass(ids_of("a"), prefill=True), Pass(ids_of(".")), Hold(), Pass(ids_of("b"))]
    engine = FakeExecutor(script, script, [Pass((EOS,), prefill=True)])
    async with serving(engine) as server:
        got = await ask(server, stopping={"stop_strings": ["."]})
    assert reasons(got[-1].finished) == ["STOP", "STOP", "EOS"]
    assert engine.closed == [engine.requests[0].request_id]


def partly_ended() -> FakeExecutor:
    """Output 0 ends by its length, output 1 by EOS, and output 2 never."""
    endless = [Pass(ids_of("x"), prefill=True), Pass(ids_of("y")), Hold(), Pass(ids_of("z"))]
    return FakeExecutor(script_of("ab", 1), [Pass((*ids_of("c"), EOS), prefill=True)], endless)


async def test_outputs_that_ended_before_the_deadline_keep_their_reason() -> None:
    async with serving(partly_ended()) as server:
        got = await ask(server, time_budget=Duration(nanos=50_000_000))
    assert reasons(got[-1].finished) == ["LENGTH", "EOS", "DEADLINE"]
    assert texts(got) == ["ab", "c", "xy"]


async def test_outputs_that_ended_before_the_server_went_down_keep_their_reason() -> None:
    async with serving(partly_ended()) as server:
        stream = call(server)
        got = [await stream.read()]
        while texts(got) != ["ab", "c", "xy"]:
            got.append(await stream.read())
        await server.server.end_requests()
        while not got[-1].HasField("finished"):
            got.append(await stream.read())
    assert reasons(got[-1].finished) == ["LENGTH", "EOS", "CANCELLED"]


async def test_a_client_that_leaves_frees_all_outputs_at_once() -> None:
    engine = partly_ended()
    async with serving(engine) as server:
        stream = call(server)
        await stream.read()
        stream.cancel()
        await engine.freed.wait()
    assert engine.closed == [engine.requests[0].request_id] and engine.requests[0].n == 3


async def test_a_failure_tells_which_outputs_had_ended_and_the_totals_of_all() -> None:
    lost = [*script_of("c"), Pass(ids_of("d")), EngineLost("gone"), Pass(ids_of("e"))]
    engine = FakeExecutor(script_of("ab", 1), lost, lost)
    async with serving(engine) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(server, stream_options={"include_full_output": True}, logprobs={"logprobs": 3})
    partial = pb.Finished.FromString(dict(caught.value.trailing_metadata())["trtspec-partial-bin"])
    assert reasons(partial) == ["LENGTH", "ERROR", "ERROR"]
    assert [output.completion_token_count for output in partial.outputs] == [2, 2, 2]
    assert partial.usage.completion_token_count == 6 and partial.speculation.decode_passes == 3
    assert not any(output.HasField("text") or output.token_ids or output.logprobs for output in partial.outputs)


async def test_the_most_outputs_of_a_request_are_those_of_a_batch() -> None:
    async with serving(executor()) as server:
        info = await rpc.InferenceStub(server.channel).GetModelInfo(pb.GetModelInfoRequest())
    assert info.limits.max_outputs == info.limits.max_batch_size == 4
