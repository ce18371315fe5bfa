"""The gateway's service, asked with the gateway's own stubs and the requests that its client builds."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import math
import struct
import sys
import zipfile
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import trtllm_service_pb2 as smg
from smg_grpc_proto.generated import trtllm_service_pb2_grpc as rpc
from tokenizers import Tokenizer

from tests.fakes import EOS, LIMITS, FakeExecutor, Hold, Pass, Serving, ids_of, logprobs_of, script_of, serving
from trtspec import __version__
from trtspec.client import Client
from trtspec.errors import EngineLost, MissingDependency
from trtspec.service import smg_requests
from trtspec.service.options import AdmissionOptions, ServeOptions
from trtspec.service.server import Server
from trtspec.service.smg_requests import meant
from trtspec.service.smg_tokenizer import TokenizerBundle
from trtspec.types import Health, Method, SamplingParams

OPTIONS = ServeOptions(port=0, smg=True)
PROMPT = ids_of("tell me")


def request(**changes: Any) -> Any:
    """As the gateway builds it of a chat: everything that it always sets."""
    fields: dict[str, Any] = {
        "request_id": "chatcmpl-1",
        "tokenized": smg.TokenizedInput(original_text="tell me", input_token_ids=PROMPT),
        "sampling_config": sampling(),
        "output_config": smg.OutputConfig(exclude_input_from_output=True),
        "max_tokens": 32,
        "streaming": True,
    }
    return smg.GenerateRequest(**{**fields, **changes})


def sampling(**changes: Any) -> Any:
    fields = {"beam_width": 1, "num_return_sequences": 1, "top_p": 1.0, "temperature": 0.0, "repetition_penalty": 1.0}
    return smg.SamplingConfig(**{**fields, **changes})


async def ask(server: Serving, message: Any) -> list[Any]:
    return [response async for response in rpc.TrtllmServiceStub(server.channel).Generate(message)]


async def refused(server: Serving, message: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(server, message)
    return caught.value


def kinds(responses: Sequence[Any]) -> list[str]:
    return [response.WhichOneof("response") for response in responses]


async def test_a_stream_has_deltas_and_then_the_whole() -> None:
    executor = FakeExecutor(script_of("abcdefgh", 4, 3), cached_tokens=5)
    async with serving(executor, OPTIONS) as server:
        got = await ask(server, request())
    assert kinds(got) == ["chunk", "chunk", "chunk", "complete"]
    assert {response.request_id for response in got} == {"chatcmpl-1"}
    first, second, third = (response.chunk for response in got[:-1])
    assert list(second.token_ids) == list(ids_of("bcde"))
    assert [chunk.completion_tokens for chunk in (first, second, third)] == [1, 5, 8]
    assert {(chunk.prompt_tokens, chunk.cached_tokens) for chunk in (first, second, third)} == {(len(PROMPT), 5)}
    whole = got[-1].complete
    assert list(whole.output_token_ids) == list(ids_of("abcdefgh"))
    assert (whole.finish_reason, whole.WhichOneof("matched_stop")) == ("length", None)
    assert (whole.prompt_tokens, whole.completion_tokens, whole.cached_tokens) == (len(PROMPT), 8, 5)
    assert (whole.spec_accepted_tokens, whole.spec_draft_tokens) == (5, 7)
    assert executor.requests[0].prompt == PROMPT


async def test_without_streaming_only_the_whole_is_sent() -> None:
    async with serving(FakeExecutor(script_of("abcdefgh", 4, 3)), OPTIONS) as server:
        (whole,) = await ask(server, request(streaming=False))
    assert list(whole.complete.output_token_ids) == list(ids_of("abcdefgh"))
    assert (whole.complete.spec_accepted_tokens, whole.complete.spec_draft_tokens) == (5, 7)


@pytest.mark.parametrize("streaming", [True, False])
async def test_each_output_has_its_own_deltas_whole_and_numbers(streaming: bool) -> None:
    executor = FakeExecutor(script_of("abcde", 4), script_of("stu", 2))
    message = request(streaming=streaming, sampling_config=sampling(num_return_sequences=2))
    async with serving(executor, OPTIONS) as server:
        got = await ask(server, message)
    wholes = [response.complete for response in got if response.WhichOneof("response") == "complete"]
    assert [whole.sequence_index for whole in wholes] == [0, 1]
    assert [bytes(whole.output_token_ids) for whole in wholes] == [bytes(ids_of("abcde")), bytes(ids_of("stu"))]
    assert [(whole.spec_accepted_tokens, whole.spec_draft_tokens) for whole in wholes] == [(3, 4), (1, 2)]
    assert [whole.completion_tokens for whole in wholes] == [5, 3]
    for index in (0, 1) if streaming else ():
        deltas = [id_ for item in got if item.chunk.sequence_index == index for id_ in item.chunk.token_ids]
        assert deltas == list(wholes[index].output_token_ids)


async def test_a_matched_stop_string_is_named() -> None:
    async with serving(FakeExecutor(script_of("abcdefgh", 7)), OPTIONS) as server:
        *chunks, last = await ask(server, request(stop=["cd"]))
    whole = last.complete
    assert (whole.finish_reason, whole.matched_stop_str) == ("stop", "cd")
    # Ids go up to the one that completes it: the gateway cuts the text, which it alone has.
    assert list(whole.output_token_ids) == list(ids_of("abcd"))
    assert [id_ for item in chunks for id_ in item.chunk.token_ids] == list(ids_of("abcd"))


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("streaming", [True, False])
async def test_an_id_that_ends_the_output_is_withheld_unless_asked_for(kept: bool, streaming: bool) -> None:
    stop = ids_of("e")[0]
    message = request(
        stop_token_ids=[stop],
        include_stop_token_in_output=kept,
        streaming=streaming,
        output_config=smg.OutputConfig(logprobs=1),
    )
    expected = ids_of("abcde" if kept else "abcd")
    async with serving(FakeExecutor(script_of("abcdefgh", 7)), OPTIONS) as server:
        *chunks, last = await ask(server, message)
    whole = last.complete
    assert (whole.finish_reason, whole.matched_token_id, whole.completion_tokens) == ("stop", stop, 5)
    assert tuple(whole.output_token_ids) == expected == tuple(item.token_id for item in whole.logprobs)
    if streaming:
        assert tuple(id_ for item in chunks for id_ in item.chunk.token_ids) == expected
        assert tuple(item.token_id for chunk in chunks for item in chunk.chunk.logprobs) == expected


async def test_the_end_of_the_text_is_a_stop_without_a_match() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Pass((*ids_of("b"), EOS))])
    async with serving(executor, OPTIONS) as server:
        whole = (await ask(server, request()))[-1].complete
        going_on = (await ask(server, request(ignore_eos=True)))[-1].complete
    assert (whole.finish_reason, whole.WhichOneof("matched_stop")) == ("stop", None)
    assert tuple(whole.output_token_ids) == ids_of("ab") and whole.completion_tokens == 3
    assert tuple(going_on.output_token_ids) == (*ids_of("ab"), EOS) and going_on.finish_reason == "length"


async def test_a_chunk_of_an_end_alone_is_not_sent() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Pass((EOS,))])
    async with serving(executor, OPTIONS) as server:
        got = await ask(server, request())
    assert kinds(got) == ["chunk", "complete"]


async def test_log_probabilities_are_told_and_what_is_not_known_is_no_number() -> None:
    output = smg.OutputConfig(logprobs=2, prompt_logprobs=1)
    async with serving(FakeExecutor(script_of("abc", 2)), OPTIONS) as server:
        *chunks, last = await ask(server, request(output_config=output))
    whole = last.complete
    told = [item for chunk in chunks for item in chunk.chunk.logprobs]
    assert told == list(whole.logprobs) and len(told) == 3
    for item, id_ in zip(told, ids_of("abc"), strict=True):
        expected = logprobs_of(id_, 2)
        assert (item.token_id, item.logprob) == (id_, expected.chosen.logprob)
        assert [(top.token_id, top.logprob) for top in item.top_logprobs] == [
            (top.token_id, top.logprob) for top in expected.top
        ]
    first, *others = whole.prompt_logprobs
    assert first.token_id == PROMPT[0] and math.isnan(first.logprob)
    assert [item.token_id for item in others] == list(PROMPT[1:]) and all(item.logprob < 0 for item in others)


async def test_every_field_reaches_the_engine() -> None:
    executor = FakeExecutor(script_of("ab", 1))
    config = sampling(
        temperature=0.7, top_k=5, top_p=0.9, min_p=0.05, seed=7, min_tokens=2, repetition_penalty=1.1,
        presence_penalty=0.3, frequency_penalty=-0.4,
    )  # fmt: skip
    bias = [0.0] * LIMITS.vocabulary_size
    bias[3] = -1.5
    message = request(sampling_config=config, bad=["x"], embedding_bias=bias, cache_salt_id=9, max_tokens=20)
    async with serving(executor, OPTIONS, SamplingParams(temperature=0.1, top_p=0.3)) as server:
        await ask(server, message)
    asked = executor.requests[0]
    assert asked.sampling == SamplingParams(
        0.7, 5, 0.9, 0.05, 1.1, 0.3, -0.4, ((3, -1.5),), asked.sampling.bad_words, 2
    )
    assert ids_of("x") in asked.sampling.bad_words
    assert (asked.seed, asked.max_tokens, asked.tenant) == (7, 20, "\0" + "9")


async def test_what_is_unset_means_what_the_stock_server_makes_of_it() -> None:
    executor = FakeExecutor(script_of("ab", 1))
    defaults = SamplingParams(temperature=0.2, top_k=9, top_p=0.5, min_p=0.1, repetition_penalty=1.3)
    async with serving(executor, OPTIONS, defaults) as server:
        await ask(server, request(sampling_config=smg.SamplingConfig(), request_id=""))
    assert executor.requests[0].sampling == SamplingParams(temperature=1.0) and executor.requests[0].n == 1
    assert executor.requests[0].request_id


async def test_values_that_change_nothing_are_no_use_of_a_feature() -> None:
    """The gateway always sends top_p, which some engines refuse."""
    executor = FakeExecutor(script_of("ab", 1), method=Method.MEDUSA)
    executor.serve_as(flow="engine")
    async with serving(executor, OPTIONS) as server:
        assert kinds(await ask(server, request()))[-1] == "complete"
        error = await refused(server, request(sampling_config=sampling(top_p=0.5)))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED and "sampling.top_p" in str(error.details())


REFUSED = {
    "tokenized.query_token_ids": {"tokenized": smg.TokenizedInput(input_token_ids=PROMPT, query_token_ids=[1])},
    "sampling_config.top_p_min": {"sampling_config": sampling(top_p_min=0.1)},
    "sampling_config.top_p_reset_ids": {"sampling_config": sampling(top_p_reset_ids=1)},
    "sampling_config.top_p_decay": {"sampling_config": sampling(top_p_decay=0.5)},
    "sampling_config.beam_search_diversity_rate": {"sampling_config": sampling(beam_search_diversity_rate=0.5)},
    "sampling_config.prompt_ignore_length": {"sampling_config": sampling(prompt_ignore_length=3)},
    "sampling_config.length_penalty": {"sampling_config": sampling(length_penalty=1.0)},
    "sampling_config.early_stopping": {"sampling_config": sampling(early_stopping=1)},
    "sampling_config.no_repeat_ngram_size": {"sampling_config": sampling(no_repeat_ngram_size=3)},
    "sampling_config.beam_width_array": {"sampling_config": sampling(beam_width_array=[1])},
    "output_config.return_context_logits": {"output_config": smg.OutputConfig(return_context_logits=True)},
    "output_config.return_generation_logits": {"output_config": smg.OutputConfig(return_generation_logits=True)},
    "output_config.return_encoder_output": {"output_config": smg.OutputConfig(return_encoder_output=True)},
    "bad_token_ids": {"bad_token_ids": [4]},
    "lora_config": {"lora_config": smg.LoraConfig(task_id=1)},
    "prompt_tuning_config": {"prompt_tuning_config": smg.PromptTuningConfig(embedding_table=b"x")},
    "multimodal_input": {"multimodal_input": smg.MultimodalInput(image_data=[b"x"])},
    "kv_cache_retention": {"kv_cache_retention": smg.KvCacheRetentionConfig(policy="x")},
    "disaggregated_params": {"disaggregated_params": smg.DisaggregatedParams(request_type=1)},
    "lookahead_config": {"lookahead_config": smg.LookaheadConfig(max_window_size=4)},
}


def paths(message: Any, prefix: str = "") -> list[str]:
    """All fields of a request, those of its three main parts by themselves."""
    found = []
    for field in message.DESCRIPTOR.fields:
        if prefix + field.name in ("tokenized", "sampling_config", "output_config"):
            found += paths(getattr(message, field.name), field.name + ".")
        else:
            found.append(prefix + field.name)
    return found


def test_every_field_is_mapped_refused_or_informs() -> None:
    sampled = {f"sampling_config.{name}" for name in smg_requests._UNSET}
    known = smg_requests._MAPPED | smg_requests._INFORM | sampled
    assert not known & REFUSED.keys()
    assert sorted(known | REFUSED.keys()) == sorted(paths(smg.GenerateRequest()))


@pytest.mark.parametrize("field", REFUSED)
async def test_what_this_server_lacks_is_refused_and_never_ignored(field: str) -> None:
    executor = FakeExecutor(script_of("ab", 1))
    async with serving(executor, OPTIONS) as server:
        error = await refused(server, request(**REFUSED[field]))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED and f"{field} is not supported" in str(error.details())
    assert not executor.requests


async def test_a_part_that_says_nothing_is_as_good_as_none() -> None:
    message = request(disaggregated_params=smg.DisaggregatedParams(), lora_config=smg.LoraConfig())
    async with serving(FakeExecutor(script_of("ab", 1)), OPTIONS) as server:
        assert kinds(await ask(server, message))[-1] == "complete"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenized": None}, "tokenized is not set"),
        ({"tokenized": smg.TokenizedInput()}, "token_ids.ids is empty"),
        ({"tokenized": smg.TokenizedInput(input_token_ids=[2**31])}, "tokenized.input_token_ids is 2147483648"),
        ({"tokenized": smg.TokenizedInput(input_token_ids=[300])}, r"token_ids.ids\[0\] is 300"),
        ({"max_tokens": 0}, "stopping.max_tokens is 0"),
        ({"max_tokens": 2**32 - 1}, "max_tokens is 4294967295"),
        ({"sampling_config": sampling(beam_width=4)}, "sampling_config.beam_width is 4"),
        ({"sampling_config": sampling(temperature=-1)}, "sampling.temperature is -1"),
        ({"sampling_config": sampling(num_return_sequences=9)}, "n is 9"),
        ({"output_config": smg.OutputConfig(logprobs=21)}, "logprobs.logprobs is 21"),
        ({"embedding_bias": [1.0]}, "embedding_bias is 1 values; allowed is 267"),
        ({"guided_decoding": smg.GuidedDecodingParams(guide="x")}, "guided_decoding.guide_type is 0"),
    ],
)
async def test_a_wrong_value_names_its_field(changes: dict[str, Any], message: str) -> None:
    executor = FakeExecutor(script_of("ab", 1))
    async with serving(executor, OPTIONS) as server:
        with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
            await ask(server, request(**changes))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT and not executor.requests


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("JSON", {"json_object": True}),
        ("JSON_SCHEMA", {"json_schema": "{}"}),
        ("REGEX", {"regex": "{}"}),
        ("EBNF_GRAMMAR", {"grammar": "{}"}),
        ("STRUCTURAL_TAG", {"structural_tag": "{}"}),
    ],
)
def test_guides_are_those_of_our_interface(kind: str, expected: dict[str, object]) -> None:
    asked = smg.GuidedDecodingParams(guide_type=f"GUIDE_TYPE_{kind}", guide="{}")
    found = smg_requests._guide(asked)
    assert MessageToDict(found, preserving_proto_field_name=True) == expected


async def test_a_failure_is_a_status() -> None:
    async with serving(FakeExecutor([Pass(ids_of("a"), prefill=True), EngineLost("gone")]), OPTIONS) as server:
        error = await refused(server, request())
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "gone")


async def test_a_full_queue_and_a_live_id_are_statuses() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event())])
    options = ServeOptions(port=0, smg=True, admission=AdmissionOptions(max_queued_requests=0))
    async with serving(executor, options) as server:
        calls = [rpc.TrtllmServiceStub(server.channel).Generate(request(request_id=f"r{i}")) for i in range(4)]
        for call in calls:
            await call.read()
        assert (await refused(server, request(request_id="r0"))).code() is grpc.StatusCode.ALREADY_EXISTS
        assert (await refused(server, request(request_id="r9"))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in calls:
            call.cancel()


async def test_abort_ends_a_request() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])
    async with serving(executor, OPTIONS) as server:
        stub = rpc.TrtllmServiceStub(server.channel)
        call = stub.Generate(request(request_id="one"))
        await call.read()
        answer = await stub.Abort(smg.AbortRequest(request_id="one"))
        assert answer.success
        whole = (await call.read()).complete
        assert (whole.finish_reason, tuple(whole.output_token_ids)) == ("cancelled", ids_of("a"))
        assert await call.code() is grpc.StatusCode.OK
        again = await stub.Abort(smg.AbortRequest(request_id="one"))
    assert not again.success and again.message


async def test_a_request_of_another_interface_is_not_aborted() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])
    async with serving(executor, OPTIONS) as server, Client(server.address) as client:
        events = client.generate("hello", request_id="one")
        await anext(events)
        assert not (await rpc.TrtllmServiceStub(server.channel).Abort(smg.AbortRequest(request_id="one"))).success
        await events.aclose()


async def test_a_dropped_stream_frees_the_engine() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event())])
    async with serving(executor, OPTIONS) as server:
        call = rpc.TrtllmServiceStub(server.channel).Generate(request())
        await call.read()
        call.cancel()
        await executor.freed.wait()
    assert executor.closed == ["chatcmpl-1"]


async def test_health_is_ok_or_says_what_is_wrong() -> None:
    executor = FakeExecutor()
    async with serving(executor, OPTIONS) as server:
        stub = rpc.TrtllmServiceStub(server.channel)

        async def status() -> str:
            return str((await stub.HealthCheck(smg.HealthCheckRequest())).status)

        assert await status() == "OK"
        check = health_pb2.HealthCheckRequest(service="trtllm.TrtllmService")
        assert (await health_pb2_grpc.HealthStub(server.channel).Check(check)).status == check_serving()
        await executor.become(Health.RESTARTING)
        assert await status() == "the engine is restarting"
        await executor.become(Health.SERVING)
        await server.server.drain()
        assert await status() == "the server is shutting down"


def check_serving() -> int:
    value: int = health_pb2.HealthCheckResponse.SERVING
    return value


async def test_a_server_that_loads_is_not_healthy_and_refuses() -> None:
    server = Server(OPTIONS, 1 << 20)
    async with grpc.aio.insecure_channel(await server.bind()) as channel:
        stub = rpc.TrtllmServiceStub(channel)
        assert "still loading" in (await stub.HealthCheck(smg.HealthCheckRequest())).status
        for call in (stub.GetModelInfo(smg.GetModelInfoRequest()), stub.GetServerInfo(smg.GetServerInfoRequest())):
            with pytest.raises(grpc.aio.AioRpcError, match="still loading"):
                await call
        with pytest.raises(grpc.aio.AioRpcError, match="still loading"):
            await stub.GetTokenizer(common_pb2.GetTokenizerRequest()).read()
        with pytest.raises(grpc.aio.AioRpcError, match="still loading"):
            await stub.Generate(request()).read()
    await server.stop()


async def test_model_and_server_are_described() -> None:
    async with serving(FakeExecutor(), OPTIONS) as server:
        stub = rpc.TrtllmServiceStub(server.channel)
        model = await stub.GetModelInfo(smg.GetModelInfoRequest())
        about = await stub.GetServerInfo(smg.GetServerInfoRequest())
    assert (model.model_id, model.max_input_len, model.max_seq_len) == ("tiny", 127, 128)
    assert (model.max_batch_size, model.vocab_size) == (4, 267)
    assert {"top_p", "logprobs"} <= set(model.supported_features)
    assert (about.version, about.backend, about.world_size, about.tensor_parallel_size) == (
        __version__,
        "embedded",
        1,
        1,
    )


async def test_the_tokenizer_is_an_archive_that_makes_the_same_ids() -> None:
    async with serving(FakeExecutor(), OPTIONS) as server:
        stub = rpc.TrtllmServiceStub(server.channel)
        chunks = [chunk async for chunk in stub.GetTokenizer(common_pb2.GetTokenizerRequest())]
        again = [chunk async for chunk in stub.GetTokenizer(common_pb2.GetTokenizerRequest())]
    assert [chunk.sha256 for chunk in chunks[:-1]] == [""] * (len(chunks) - 1)
    data = b"".join(chunk.data for chunk in chunks)
    assert hashlib.sha256(data).hexdigest() == chunks[-1].sha256 == again[-1].sha256
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        tokenizer = Tokenizer.from_str(archive.read("tokenizer.json").decode())
        assert json.loads(archive.read("generation_config.json")) == {"eos_token_id": [EOS]}
        names = set(archive.namelist())
    assert tuple(tokenizer.encode("tell me", add_special_tokens=False).ids) == PROMPT
    assert "tokenizer_config.json" in names and not any("/" in name for name in names)


@pytest.mark.parametrize("size", [1, 64 << 10, (64 << 10) + 1, 200_000])
def test_a_large_archive_comes_in_parts_and_the_last_one_has_the_hash(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    *parts, last = TokenizerBundle(data, "hash").chunks()
    assert b"".join(chunk.data for chunk in (*parts, last)) == data
    assert [chunk.sha256 for chunk in (*parts, last)] == [""] * len(parts) + ["hash"]
    assert max(len(chunk.data) for chunk in (*parts, last)) <= 64 << 10


async def test_what_is_not_served_is_unimplemented_without_a_word_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(FakeExecutor(), OPTIONS) as server:
        stub = rpc.TrtllmServiceStub(server.channel)
        for call in (
            stub.Embed(smg.EmbedRequest()),
            stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()).read(),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "this server" in str(caught.value.details())
    assert caplog.messages == []


async def test_the_gateway_finds_out_what_this_is() -> None:
    """It asks for the health of other servers first, and must not wait for their answers."""
    async with serving(FakeExecutor(), OPTIONS) as server:
        for name in ("/sglang.grpc.scheduler.SglangScheduler/HealthCheck", "/vllm.grpc.engine.VllmEngine/HealthCheck"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await server.channel.unary_unary(name)(b"", timeout=5)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_service_is_there_only_where_it_is_asked_for() -> None:
    async with serving(FakeExecutor()) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.TrtllmServiceStub(server.channel).HealthCheck(smg.HealthCheckRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "smg_grpc_proto.generated", None)
    monkeypatch.delitem(sys.modules, "trtspec.service.smg")
    monkeypatch.delattr("trtspec.service.smg")
    with pytest.raises(MissingDependency, match=r"pip install 'trtspec\[smg\]'"):
        Server(OPTIONS, 1 << 20)


async def test_instants_are_told_where_asked_for() -> None:
    async with serving(FakeExecutor(script_of("abc", 2)), OPTIONS) as server:
        plain = (await ask(server, request()))[-1].complete
        told = (await ask(server, request(output_config=smg.OutputConfig(return_perf_metrics=True))))[-1].complete
    assert not plain.HasField("perf_metrics")
    times = told.perf_metrics
    assert 1e9 < times.arrival_time <= times.first_scheduled_time <= times.first_token_time <= times.last_token_time


@pytest.mark.parametrize("value", [0.7, 0.1, 1.1, 0.95, 1.0, 0.0, -0.4, 1e-5, 123456.0, 0.1234567, 16777215.0])
def test_a_single_precision_number_becomes_the_one_that_was_meant(value: float) -> None:
    single = struct.unpack("f", struct.pack("f", value))[0]
    assert struct.pack("f", meant(single)) == struct.pack("f", value)
    assert meant(single) == value


def test_what_is_no_number_stays_so() -> None:
    assert math.isnan(meant(math.nan)) and meant(math.inf) == math.inf
