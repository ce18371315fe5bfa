"""Generate over a real gRPC server and a scripted engine: what a client sees, message by message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from tests.fakes import EOS, FakeExecutor, Hold, Pass, Serving, ids_of, script_of, serving
from trtspec.client import convert
from trtspec.client.events import Accepted
from trtspec.errors import EngineLost
from trtspec.service.options import ServeOptions
from trtspec.types import Method
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc
from trtspec.v1 import speculation_pb2 as spec

TEXT = "the end of the story, and on"


def request(**fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(**{"text": "tell me", **fields})


async def ask(server: Serving, message: pb.GenerateRequest) -> list[pb.GenerateResponse]:
    return [response async for response in rpc.InferenceStub(server.channel).Generate(message)]


def text_of(responses: Sequence[pb.GenerateResponse]) -> str:
    return "".join(response.chunk.text for response in responses)


def output_of(responses: Sequence[pb.GenerateResponse]) -> pb.Output:
    return responses[-1].finished.outputs[0]


async def test_accepted_comes_first_then_one_chunk_a_pass_then_finished() -> None:
    executor = FakeExecutor(script_of("abcdefgh", 4, 3))
    async with serving(executor) as server:
        got = await ask(server, request(sampling={"seed": 7}, request_id="mine"))
    assert [response.WhichOneof("event") for response in got] == ["accepted", "chunk", "chunk", "chunk", "finished"]
    accepted = got[0].accepted
    assert (accepted.request_id, accepted.seed, accepted.engine_id) == ("mine", 7, "e" * 64)
    assert accepted.prompt_token_count == len(ids_of("tell me"))
    assert accepted.output_law == spec.OUTPUT_LAW_EXACT
    assert (accepted.speculation.method, accepted.speculation.max_draft_tokens) == (spec.SPECULATION_METHOD_NGRAM, 4)
    second = got[2].chunk
    assert (second.text, len(second.token_ids)) == ("bcde", 4)
    assert [(p.drafted_count, p.accepted_count, p.emitted_count) for p in second.passes] == [(4, 3, 4)]
    finished = got[-1].finished
    assert finished.usage.completion_token_count == 8 and finished.usage.total_token_count == 15
    assert not finished.usage.HasField("cached_prompt_token_count")
    assert finished.speculation.accepted_count == 5 and finished.speculation.decode_passes == 2
    assert finished.speculation.tokens_per_pass == pytest.approx(7 / 2)
    assert list(finished.speculation.accepted_length_histogram) == [0, 0, 1, 1]
    assert finished.outputs[0].finish_reason == pb.FINISH_REASON_LENGTH
    assert finished.timings.total.ToNanoseconds() >= finished.timings.time_to_first_token.ToNanoseconds() > 0


async def test_a_request_without_seed_is_given_one_and_told_it() -> None:
    executor = FakeExecutor(script_of("ab", 1))
    async with serving(executor) as server:
        seeds = [(await ask(server, request()))[0].accepted.seed for _ in range(2)]
    assert seeds == [live.seed for live in executor.requests]
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("sizes", [(9, 8, 8), (1,) * 25, (25,)])
@pytest.mark.parametrize("stop", ["story", "the s", "d", "nd on", "n"])
async def test_a_stop_string_ends_the_text_at_the_same_character_however_passes_group_tokens(
    sizes: tuple[int, ...], stop: str
) -> None:
    count = len(ids_of(TEXT)) - 1
    sizes = tuple(min(size, count - sum(sizes[:i])) for i, size in enumerate(sizes) if sum(sizes[:i]) < count)
    executor = FakeExecutor(script_of(TEXT, *sizes))
    async with serving(executor) as server:
        got = await ask(
            server, request(stopping={"stop_strings": [stop]}, stream_options={"include_full_output": True})
        )
    assert text_of(got) == TEXT[: TEXT.index(stop)] == output_of(got).text
    assert output_of(got).finish_reason == pb.FINISH_REASON_STOP
    assert output_of(got).stop_string == stop
    delivered = [id_ for response in got for id_ in response.chunk.token_ids]
    # The token that completes the stop string is delivered and counted, nothing after it is.
    assert delivered == list(output_of(got).token_ids) == list(ids_of(TEXT)[: len(delivered)])
    assert got[-1].finished.usage.completion_token_count == len(delivered)
    stats = got[-1].finished.speculation
    assert 1 + stats.emitted_count == len(delivered)
    assert executor.closed == [executor.requests[0].request_id]


async def test_a_stop_string_cuts_the_pass_record_to_what_was_delivered() -> None:
    executor = FakeExecutor(script_of("abcdefgh", 7))
    async with serving(executor) as server:
        got = await ask(server, request(stopping={"stop_strings": ["cd"], "include_stop_string": True}))
    (record,) = got[2].chunk.passes
    assert (record.emitted_count, record.accepted_count, record.drafted_count, record.cut) == (3, 3, 3, True)
    assert text_of(got) == "abcd"
    assert got[-1].finished.speculation.rejected_steps == 0


async def test_eos_is_delivered_as_an_id_and_counted_and_has_no_text() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Pass((*ids_of("bc"), EOS, *ids_of("de")), 5, 4)])
    async with serving(executor) as server:
        got = await ask(server, request())
    assert text_of(got) == "abc"
    assert output_of(got).finish_reason == pb.FINISH_REASON_EOS and output_of(got).stop_token_id == EOS
    assert got[-1].finished.usage.completion_token_count == 4
    assert got[2].chunk.token_ids[-1] == EOS


async def test_a_stop_token_id_has_no_text_and_frees_held_text() -> None:
    executor = FakeExecutor(script_of("ab.cd", 4))
    (dot,) = ids_of(".")
    async with serving(executor) as server:
        got = await ask(server, request(stopping={"stop_token_ids": [dot], "stop_strings": ["bX"]}))
    assert text_of(got) == "ab"
    assert output_of(got).finish_reason == pb.FINISH_REASON_STOP and output_of(got).stop_token_id == dot


async def test_ids_of_an_incomplete_character_come_at_once_and_its_text_later() -> None:
    executor = FakeExecutor(script_of("é😀", 2, 3))
    async with serving(executor) as server:
        got = await ask(server, request())
    assert [response.chunk.text for response in got[1:-1]] == ["", "é", "😀"]
    assert [len(response.chunk.token_ids) for response in got[1:-1]] == [1, 2, 3]


async def test_granularity_token_sends_one_message_an_id_with_the_record_on_the_first() -> None:
    executor = FakeExecutor(script_of("abcdef", 3, 2))
    stream = {"granularity": pb.STREAM_GRANULARITY_TOKEN}
    async with serving(executor) as server:
        got = await ask(server, request(stream_options=stream))
    chunks = [response.chunk for response in got[1:-1]]
    assert [chunk.text for chunk in chunks] == list("abcdef")
    assert [len(chunk.passes) for chunk in chunks] == [1, 1, 0, 0, 1, 0]


async def test_granularity_final_sends_no_chunk_and_the_whole_output() -> None:
    async with serving(FakeExecutor(script_of("abcdef", 3, 2))) as server:
        got = await ask(server, request(stream_options={"granularity": pb.STREAM_GRANULARITY_FINAL}))
    assert [response.WhichOneof("event") for response in got] == ["accepted", "finished"]
    assert output_of(got).text == "abcdef" and list(output_of(got).token_ids) == list(ids_of("abcdef"))


async def test_merged_passes_keep_a_record_each() -> None:
    async with serving(FakeExecutor(script_of("abcdef", 3, 2), merge=True)) as server:
        got = await ask(server, request(speculation={"stats_level": spec.STATS_LEVEL_DETAILED}))
    assert [response.WhichOneof("event") for response in got] == ["accepted", "chunk", "finished"]
    assert [record.emitted_count for record in got[1].chunk.passes] == [1, 3, 2]
    assert [record.emitted_count for record in got[-1].finished.speculation.passes] == [1, 3, 2]
    assert not got[-1].finished.speculation.passes_truncated


async def test_min_interval_spaces_messages() -> None:
    async with serving(FakeExecutor(script_of("abcdef", 2, 2, 1))) as server:
        message = request(stream_options={"min_interval": Duration(nanos=60_000_000)})
        times = []
        async for response in rpc.InferenceStub(server.channel).Generate(message):
            if response.HasField("chunk"):
                times.append(time.monotonic())
    assert len(times) == 4 and times[2] - times[0] >= 0.1


async def test_min_interval_does_not_delay_the_end() -> None:
    async with serving(FakeExecutor(script_of("abcdef", 5))) as server:
        got = await asyncio.wait_for(ask(server, request(stream_options={"min_interval": Duration(seconds=60)})), 30)
    assert text_of(got) == "abcdef" and len(got) == 4


async def test_min_interval_does_not_outlast_the_time_of_the_request() -> None:
    script = [Pass(ids_of("a"), prefill=True), Pass(ids_of("b")), Hold(asyncio.Event()), Pass(ids_of("c"))]
    wish = request(stream_options={"min_interval": Duration(seconds=60)}, time_budget=Duration(nanos=200_000_000))
    async with serving(FakeExecutor(script)) as server:
        got = await asyncio.wait_for(ask(server, wish), 30)
    assert text_of(got) == "ab" and output_of(got).finish_reason == pb.FINISH_REASON_DEADLINE


async def test_a_stop_string_that_only_the_end_completes_is_reported() -> None:
    half = ids_of("é")[0]
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Pass((half,))])
    async with serving(executor) as server:
        got = await ask(server, request(stopping={"stop_strings": ["\ufffd"]}))
    assert (output_of(got).finish_reason, output_of(got).stop_string) == (pb.FINISH_REASON_STOP, "\ufffd")
    assert text_of(got) == "a"


async def test_a_prefill_pass_is_told_from_a_decode_pass() -> None:
    async with serving(FakeExecutor(script_of("abc", 2))) as server:
        got = await ask(server, request())
    first, second = (response.chunk.passes[0] for response in got[1:-1])
    assert (first.prefill, second.prefill) == (True, False)
    assert first.HasField("drafted_count") and first.drafted_count == 0


async def test_the_whole_text_is_in_the_end_only_where_it_is_asked_for() -> None:
    async with serving(FakeExecutor(script_of("abc", 2))) as server:
        plain = await ask(server, request())
        whole = await ask(server, request(stream_options={"include_full_output": True}))
    assert not output_of(plain).HasField("text") and output_of(whole).text == "abc"


@pytest.mark.parametrize("unverified", [False, True])
async def test_accepted_tells_of_a_drafter_made_for_who_knows_which_target(unverified: bool) -> None:
    async with serving(FakeExecutor(script_of("ab", 1), unverified_target=unverified)) as server:
        got = await ask(server, request())
    assert got[0].accepted.speculation.unverified_target is unverified
    told = convert.event(got[0])
    assert isinstance(told, Accepted) and told.unverified_target is unverified


async def test_stats_level_none_sends_no_statistics() -> None:
    async with serving(FakeExecutor(script_of("ab", 1))) as server:
        got = await ask(server, request(speculation={"stats_level": spec.STATS_LEVEL_NONE}))
    assert not got[-1].finished.HasField("speculation")


async def test_speculation_off_reaches_the_engine_and_is_reported() -> None:
    executor = FakeExecutor(script_of("abc", 2))
    async with serving(executor) as server:
        got = await ask(server, request(speculation={"mode": spec.SPECULATION_MODE_OFF}))
    assert executor.requests[0].max_draft_tokens == 0
    assert got[0].accepted.speculation.method == spec.SPECULATION_METHOD_NONE
    stats = got[-1].finished.speculation
    assert stats.decode_passes == 2 and stats.spec_steps == 0 and not stats.HasField("acceptance_rate")


async def test_a_depth_that_a_default_leaves_unused_is_explained() -> None:
    executor = FakeExecutor(script_of("abc", 2))
    async with serving(executor, ServeOptions(port=0, default_speculation="off")) as server:
        got = await ask(server, request(speculation={"max_draft_tokens": 3}))
        insisted = await ask(server, request(speculation={"max_draft_tokens": 3, "mode": spec.SPECULATION_MODE_ON}))
    assert "off by default" in got[0].accepted.speculation.reason
    assert [live.max_draft_tokens for live in executor.requests] == [0, 3]
    assert insisted[0].accepted.speculation.reason == ""


async def test_time_budget_ends_an_accepted_request_with_deadline() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])
    async with serving(executor) as server:
        got = await ask(server, request(time_budget=Duration(nanos=50_000_000)))
    assert output_of(got).finish_reason == pb.FINISH_REASON_DEADLINE
    assert text_of(got) == "a"


async def test_the_engine_stops_a_little_before_the_deadline_of_the_call() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])
    async with serving(executor) as server:
        call = rpc.InferenceStub(server.channel).Generate(request(), timeout=1.0)
        got = [response async for response in call]
    assert output_of(got).finish_reason == pb.FINISH_REASON_DEADLINE


async def test_without_any_deadline_the_engine_has_none() -> None:
    executor = FakeExecutor(script_of("ab", 1))
    async with serving(executor) as server:
        await ask(server, request())
    assert executor.requests[0].deadline is None


async def test_a_lost_engine_gives_unavailable_with_partial_usage() -> None:
    executor = FakeExecutor([*script_of("abcd", 3), EngineLost("the engine's process died")])
    async with serving(executor) as server:
        call = rpc.InferenceStub(server.channel).Generate(request())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    error = caught.value
    assert error.code().name == "UNAVAILABLE"
    trailers = dict(error.trailing_metadata())
    partial = pb.Finished.FromString(trailers["trtspec-partial-bin"])
    assert partial.usage.completion_token_count == 4
    assert partial.speculation.accepted_count == 2
    assert partial.outputs[0].finish_reason == pb.FINISH_REASON_ERROR
    assert executor.closed == [executor.requests[0].request_id]


async def test_a_client_that_leaves_closes_the_iterator_once() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])
    async with serving(executor) as server:
        call = rpc.InferenceStub(server.channel).Generate(request(request_id="gone"))
        await call.read()
        await call.read()
        call.cancel()
        # The id is free again only after the iterator was closed.
        await executor.freed.wait()
        executor.script = tuple(script_of("ab", 1))
        await ask(server, request(request_id="gone"))
    assert executor.closed == ["gone", "gone"]


async def test_a_client_that_leaves_while_queued_closes_the_iterator_too() -> None:
    executor = FakeExecutor(script_of("ab", 1))
    executor.queue_open.clear()
    async with serving(executor) as server:
        call = rpc.InferenceStub(server.channel).Generate(request(request_id="early"))
        reading = asyncio.create_task(call.read())
        await executor.asked.wait()
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await executor.freed.wait()
    assert executor.closed == ["early"]


async def test_method_none_serves_the_same_path() -> None:
    async with serving(FakeExecutor(script_of("abc", 2), method=Method.NONE)) as server:
        got = await ask(server, request(speculation={"max_draft_tokens": 2}))
    assert text_of(got) == "abc"
    assert "drafts nothing" in got[0].accepted.speculation.reason
