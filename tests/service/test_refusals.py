"""Requests that are refused: the right status, details a program can read, and a server that lives on."""

from __future__ import annotations

import asyncio
import math
import threading
from dataclasses import replace

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from tests.fakes import LIMITS, FakeExecutor, Hold, Pass, Serving, ids_of, script_of, serving
from tests.models import tiny_tokenizer
from trtspec.errors import InvalidField
from trtspec.service import answer_size
from trtspec.service.admission import MOST_TOKENIZE_CALLS
from trtspec.service.options import AdmissionOptions, ServeOptions
from trtspec.service.text import ChatPrompt, Tokenizer
from trtspec.types import Method
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc
from trtspec.v1 import speculation_pb2 as spec

ON = {"mode": spec.SPECULATION_MODE_ON}
Code = grpc.StatusCode
HELLO = ChatPrompt(({"role": "user", "content": "hi"},))


async def refusal(server: Serving, **fields: object) -> grpc.aio.AioRpcError:
    """The error of a request, after which nothing was sent."""
    message = pb.GenerateRequest(**({} if "chat" in fields or "token_ids" in fields else {"text": "hi"}) | fields)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in rpc.InferenceStub(server.channel).Generate(message):
            pytest.fail("something was sent before the refusal")
    return caught.value


def details(error: grpc.aio.AioRpcError) -> dict[str, object]:
    """The details of a rich status by the name of their message."""
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    found = {}
    for detail in status.details:
        name = detail.TypeName().rsplit(".", 1)[1]
        found[name] = getattr(error_details_pb2, name)()
        detail.Unpack(found[name])
    return found


@pytest.mark.parametrize(
    ("fields", "field", "allowed"),
    [
        ({"text": ""}, "text", "at least one token"),
        ({"token_ids": {"ids": []}}, "token_ids.ids", "at least one token"),
        ({"token_ids": {"ids": [5, 267]}}, "token_ids.ids[1]", "0 to 266"),
        ({"token_ids": {"ids": [-1]}}, "token_ids.ids[0]", "0 to 266"),
        ({"chat": {}}, "chat.messages", "at least one message"),
        ({"chat": {"messages": [{"role": "user"}], "template": "other"}}, "chat.template", "one of default"),
        (
            {"chat": {"messages": [{"role": "user"}], "template_arguments": {"chat_template": "{{ 1 }}"}}},
            "chat.template_arguments",
            "a name that the server does not set",
        ),
        ({"sampling": {"temperature": -1}}, "sampling.temperature", "0 to 100"),
        ({"sampling": {"temperature": 101}}, "sampling.temperature", "0 to 100"),
        ({"sampling": {"temperature": math.nan}}, "sampling.temperature", "0 to 100"),
        ({"sampling": {"temperature": math.inf}}, "sampling.temperature", "0 to 100"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p", "above 0 and at most 1"),
        ({"sampling": {"top_p": math.nan}}, "sampling.top_p", "above 0 and at most 1"),
        ({"sampling": {"top_k": -1}}, "sampling.top_k", "0 or more"),
        ({"sampling": {"min_p": 1}}, "sampling.min_p", "0 or more and below 1"),
        ({"stopping": {"max_tokens": 0}}, "stopping.max_tokens", "1 or more"),
        ({"stopping": {"stop_strings": ["a", ""]}}, "stopping.stop_strings[1]", "a text of at least one character"),
        ({"stopping": {"stop_strings": ["a"] * 65}}, "stopping.stop_strings", "at most 64"),
        ({"stopping": {"stop_token_ids": [267]}}, "stopping.stop_token_ids[0]", "0 to 266"),
        ({"n": 0}, "n", "1 to 4"),
        ({"n": 5}, "n", "1 to 4"),
        ({"sampling": {"repetition_penalty": 0}}, "sampling.repetition_penalty", "0.01 to 100"),
        ({"sampling": {"repetition_penalty": math.inf}}, "sampling.repetition_penalty", "0.01 to 100"),
        ({"sampling": {"presence_penalty": 2.1}}, "sampling.presence_penalty", "-2 to 2"),
        ({"sampling": {"frequency_penalty": -2.1}}, "sampling.frequency_penalty", "-2 to 2"),
        ({"sampling": {"frequency_penalty": math.nan}}, "sampling.frequency_penalty", "-2 to 2"),
        ({"sampling": {"logit_bias": {267: 1}}}, "sampling.logit_bias", "token ids of 0 to 266"),
        ({"sampling": {"logit_bias": {-1: 1}}}, "sampling.logit_bias", "token ids of 0 to 266"),
        ({"sampling": {"logit_bias": {7: 100.5}}}, "sampling.logit_bias[7]", "-100 to 100"),
        ({"sampling": {"logit_bias": {7: math.nan}}}, "sampling.logit_bias[7]", "-100 to 100"),
        ({"sampling": {"logit_bias": dict.fromkeys(range(1025), 0)}}, "sampling.logit_bias", "at most 1024"),
        ({"sampling": {"bad_words": ["a"] * 65}}, "sampling.bad_words", "at most 64"),
        ({"sampling": {"bad_words": ["a", ""]}}, "sampling.bad_words[1]", "a text of 1 to 256 characters"),
        ({"sampling": {"bad_words": ["a" * 257]}}, "sampling.bad_words[0]", "a text of 1 to 256 characters"),
        ({"stopping": {"min_tokens": -1}}, "stopping.min_tokens", "0 or more"),
        ({"stopping": {"min_tokens": 4, "max_tokens": 3}}, "stopping.min_tokens", "0 to 3, which is max_tokens"),
        ({"logprobs": {"logprobs": 21}}, "logprobs.logprobs", "0 to 20"),
        ({"logprobs": {"prompt_logprobs": -1}}, "logprobs.prompt_logprobs", "0 to 20"),
        ({"priority": 101}, "priority", "-100 to 100"),
        ({"request_id": "x" * 129}, "request_id", "at most 128 printable characters"),
        ({"request_id": "a\nb"}, "request_id", "at most 128 printable characters"),
        ({"tenant": "x" * 129}, "tenant", "at most 128 printable characters"),
        ({"tenant": "a\0b"}, "tenant", "at most 128 printable characters"),
        ({"session_key": "a\n"}, "session_key", "at most 128 printable characters"),
        ({"cache_salt": "x" * 129}, "cache_salt", "at most 128 printable characters"),
        ({"tags": {str(i): "" for i in range(17)}}, "tags", "at most 16"),
        ({"tags": {"x" * 129: ""}}, "tags", "at most 128 printable characters"),
        ({"tags": {"task": "a\0"}}, "tags['task']", "at most 128 printable characters"),
        ({"time_budget": Duration()}, "time_budget", "more than 0 s"),
        ({"stream_options": {"granularity": 9}}, "stream_options.granularity", "STREAM_GRANULARITY_STEP"),
        ({"stream_options": {"min_interval": Duration(seconds=61)}}, "stream_options.min_interval", "0 to 60.0"),
        (
            {"stream_options": {"granularity": 2, "min_interval": Duration(seconds=1)}},
            "stream_options.min_interval",
            "unset with granularity TOKEN",
        ),
        ({"speculation": {"mode": 77}}, "speculation.mode", "SPECULATION_MODE_OFF"),
        ({"speculation": {"max_draft_tokens": 0}}, "speculation.max_draft_tokens", "1 to 8"),
        ({"speculation": {"max_draft_tokens": 9}}, "speculation.max_draft_tokens", "1 to 8"),
    ],
)
async def test_a_wrong_field_is_invalid_argument_and_named_with_its_range(
    fields: dict[str, object], field: str, allowed: str
) -> None:
    executor = FakeExecutor(script_of("ab", 1))
    async with serving(executor) as server:
        error = await refusal(server, **fields)
        assert error.code() is Code.INVALID_ARGUMENT
        assert field in error.details() and allowed in error.details()
        found = details(error)
        assert found["BadRequest"].field_violations[0].field == field
        assert (found["ErrorInfo"].reason, found["ErrorInfo"].domain) == ("INVALID_FIELD", "trtspec")
        assert not executor.requests
        # The server lives on.
        answer = rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest(text="hi"))
        assert [response async for response in answer][-1].HasField("finished")


async def test_a_request_without_prompt_is_invalid() -> None:
    async with serving(FakeExecutor()) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest()).read()
    assert caught.value.code() is Code.INVALID_ARGUMENT and "prompt" in caught.value.details()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"guided_decoding": {"regex": "a+"}}, "guided_decoding"),
        ({"guided_decoding": {"json_object": False}}, "guided_decoding"),
    ],
)
async def test_a_feature_that_is_not_there_is_unimplemented_and_never_ignored(
    fields: dict[str, object], field: str
) -> None:
    async with serving(FakeExecutor(script_of("ab", 1))) as server:
        error = await refusal(server, **fields)
    assert error.code() is Code.UNIMPLEMENTED
    assert error.details().startswith(f"{field} is not supported by method ngram on the embedded backend: ")
    assert details(error)["ErrorInfo"].metadata["field"] == field


async def test_neutral_values_ask_for_nothing() -> None:
    neutral = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
    message = pb.GenerateRequest(text="hi", sampling=neutral, stopping={"min_tokens": 0}, n=1)
    async with serving(FakeExecutor(script_of("ab", 1))) as server:
        got = [response async for response in rpc.InferenceStub(server.channel).Generate(message)]
    assert got[-1].HasField("finished")


async def test_a_prompt_that_leaves_no_room_names_both_numbers() -> None:
    context = LIMITS.max_context_tokens
    async with serving(FakeExecutor(script_of("ab", 1))) as server:
        error = await refusal(server, token_ids={"ids": [5] * context})
        fits = pb.GenerateRequest(token_ids={"ids": [5] * (context - 1)})
        got = [response async for response in rpc.InferenceStub(server.channel).Generate(fits)]
    assert error.code() is Code.INVALID_ARGUMENT and error.details().count(str(context)) == 2
    assert details(error)["ErrorInfo"].reason == "PROMPT_TOO_LONG"
    assert got[-1].finished.usage.completion_token_count == 1


@pytest.mark.parametrize("prompt", [{"text": "hello"}, {"token_ids": {"ids": [5] * 5}}])
async def test_more_log_probabilities_than_a_message_holds_are_refused(
    prompt: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_size, "MOST_BYTES", 500)
    async with serving(executor := FakeExecutor(script_of("ab", 1))) as server:
        error = await refusal(server, **prompt, logprobs={"prompt_logprobs": 6})
        assert error.code() is Code.INVALID_ARGUMENT and not executor.requests
        assert error.details() == "logprobs.prompt_logprobs is 6; allowed is 0 to 4 for a prompt of 5 tokens"
        fits = pb.GenerateRequest(text="hello", logprobs={"prompt_logprobs": 4})
        got = [response async for response in rpc.InferenceStub(server.channel).Generate(fits)]
    assert len(got[-1].finished.prompt_logprobs) == 5 and got[-1].finished.ByteSize() < 700


async def test_a_text_that_cannot_fit_is_refused_without_encoding_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # No token of the tiny tokenizer is longer than <|endoftext|>.
    most = LIMITS.max_context_tokens * len("<|endoftext|>")
    encoded: list[int] = []
    encode = Tokenizer.encode

    def recorded(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
        encoded.append(len(text))
        return encode(tokenizer, text)

    monkeypatch.setattr(Tokenizer, "encode", recorded)
    async with serving(FakeExecutor(script_of("ab", 1))) as server:
        error = await refusal(server, text="x" * (most + 1))
        assert error.code() is Code.INVALID_ARGUMENT
        assert f"has {most + 1} characters and the context holds 128 tokens" in error.details()
        assert details(error)["ErrorInfo"].reason == "PROMPT_TOO_LONG" and not encoded
        error = await refusal(server, text="x" * most)
    assert f"the prompt has {most} tokens" in error.details() and encoded == [most]


@pytest.mark.parametrize(
    "chat",
    [
        {"messages": [{"role": "user"}], "template": "t" * 9000},
        {"messages": [{"role": "\U0001f600" * 12500}]},
        {"messages": [{"role": "user"}], "template_arguments": {"n": math.inf}},
    ],
)
async def test_long_text_of_a_client_comes_back_short(chat: dict[str, object]) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('unknown role ' + messages[0]['role']) }}"
    async with serving(FakeExecutor(), tokenizer=tokenizer) as server:
        error = await refusal(server, chat=chat)
    assert error.code() is Code.INVALID_ARGUMENT
    assert len(error.details().encode()) <= 1100
    assert sum(len(key) + len(value) for key, value in error.trailing_metadata()) < 4096


async def test_tokenize_has_places_of_its_own_and_none_while_the_server_drains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go = threading.Event()
    encode = Tokenizer.encode

    def held(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
        if text == "held":
            assert go.wait(60)
        return encode(tokenizer, text)

    monkeypatch.setattr(Tokenizer, "encode", held)
    async with serving(FakeExecutor(script_of("ab", 1))) as server:
        stub = rpc.InferenceStub(server.channel)
        calls = [stub.Tokenize(pb.TokenizeRequest(text="held")) for _ in range(MOST_TOKENIZE_CALLS + 1)]
        try:
            tasks = [asyncio.ensure_future(_code(call)) for call in calls]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result() for task in done] == [Code.RESOURCE_EXHAUSTED]
            # Requests with ids need no encoding, and text is made of their tokens although all encoders are held.
            ids = pb.GenerateRequest(token_ids={"ids": [5]})
            assert [response async for response in stub.Generate(ids)][-1].HasField("finished")
        finally:
            go.set()
        assert sorted(await asyncio.gather(*tasks), key=str) == [Code.OK] * MOST_TOKENIZE_CALLS + [
            Code.RESOURCE_EXHAUSTED
        ]
        await server.server.drain()
        with pytest.raises(grpc.aio.AioRpcError, match="shutting down") as caught:
            await stub.Tokenize(pb.TokenizeRequest(text="x"))
    assert caught.value.code() is Code.UNAVAILABLE


async def _code(call: grpc.aio.UnaryUnaryCall[pb.TokenizeRequest, pb.TokenizeResponse]) -> grpc.StatusCode:
    return await call.code()


async def test_an_engine_that_was_started_without_speculation_says_so() -> None:
    async with serving(FakeExecutor(method=Method.NONE)) as server:
        error = await refusal(server, speculation=ON)
    assert "built or started with method none" in error.details()


async def test_an_unknown_model_is_not_found() -> None:
    async with serving(FakeExecutor()) as server:
        error = await refusal(server, model="other")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.InferenceStub(server.channel).GetModelInfo(pb.GetModelInfoRequest(model="other"))
    assert error.code() is caught.value.code() is Code.NOT_FOUND
    assert "'other'" in error.details() and "'tiny'" in error.details()


async def test_insisting_on_speculation_where_nothing_drafts_is_a_failed_precondition() -> None:
    async with serving(FakeExecutor(method=Method.NONE)) as server:
        error = await refusal(server, speculation=ON)
    assert error.code() is Code.FAILED_PRECONDITION
    assert details(error)["ErrorInfo"].reason == "SPECULATION_REFUSED"


def holding() -> FakeExecutor:
    return FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])


async def test_a_live_request_id_cannot_be_used_twice_and_can_be_after_its_end() -> None:
    async with serving(executor := holding()) as server:
        stub = rpc.InferenceStub(server.channel)
        live = stub.Generate(pb.GenerateRequest(text="hi", request_id="same"))
        await live.read()
        error = await refusal(server, request_id="same")
        assert error.code() is Code.ALREADY_EXISTS and "'same'" in error.details()
        live.cancel()
        await executor.freed.wait()
        assert (await stub.Generate(pb.GenerateRequest(text="hi", request_id="same")).read()).HasField("accepted")


async def test_a_full_queue_is_resource_exhausted_with_a_retry_delay() -> None:
    executor = holding()
    options = ServeOptions(port=0, admission=AdmissionOptions(max_queued_requests=1))
    async with serving(executor, options) as server:
        stub = rpc.InferenceStub(server.channel)
        live = [stub.Generate(pb.GenerateRequest(text="hi")) for _ in range(LIMITS.max_batch_size + 1)]
        for call in live:
            await call.read()
        error = await refusal(server)
        assert (
            error.code() is Code.RESOURCE_EXHAUSTED and f"{LIMITS.max_batch_size + 1} is the limit" in error.details()
        )
        assert details(error)["RetryInfo"].retry_delay.seconds >= 1
        live[0].cancel()
        await executor.freed.wait()
        assert (await stub.Generate(pb.GenerateRequest(text="hi")).read()).HasField("accepted")


async def test_a_message_over_the_limit_is_resource_exhausted() -> None:
    async with serving(
        FakeExecutor(), ServeOptions(port=0, admission=AdmissionOptions(max_message_bytes=1000))
    ) as server:
        error = await refusal(server, text="x" * 2000)
    assert error.code() is Code.RESOURCE_EXHAUSTED


async def test_an_unforeseen_error_tells_an_id_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    executor = FakeExecutor()
    executor.generate = lambda request: 1 / 0  # type: ignore[assignment,return-value]
    async with serving(executor) as server:
        error = await refusal(server)
    assert error.code() is Code.INTERNAL
    incident = details(error)["ErrorInfo"].metadata["incident"]
    assert incident in error.details() and "Zero" not in error.details()
    assert incident in caplog.text and "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ raise_exception('roles must alternate') }}", "chat is .*roles must alternate"),
        ("{{ 1 / 0 }}", "chat is not accepted by the chat template .*division"),
        (None, "text or token_ids: this model has no chat template"),
    ],
)
def test_a_template_that_fails_names_the_chat(template: str | None, problem: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(InvalidField, match=problem):
        Tokenizer(tokenizer).render(HELLO)


def test_the_only_template_can_be_named_and_several_by_their_names() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "one {{ messages[0]['content'] }}"
    assert Tokenizer(tokenizer).render(replace(HELLO, template="default")) == "one hi"
    tokenizer.chat_template = {"default": "first", "other": "second"}
    assert Tokenizer(tokenizer).render(replace(HELLO, template="other")) == "second"
    assert Tokenizer(tokenizer).render(HELLO) == "first"
    with pytest.raises(InvalidField, match="'third'; allowed is one of default, other"):
        Tokenizer(tokenizer).render(replace(HELLO, template="third"))
