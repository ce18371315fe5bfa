"""The client class against a real server."""

from __future__ import annotations

import asyncio
import json

import grpc
import numpy as np
import pytest

from tests.fakes import LIMITS, FakeExecutor, Hold, Pass, ids_of, logprobs_of, script_of, serving
from trtspec.cli.json_lines import as_dict
from trtspec.client import Accepted, Chunk, Client, Finished, Prompt, RequestFailed, convert
from trtspec.errors import EngineLost
from trtspec.service import servicer
from trtspec.service.callers import Caller
from trtspec.service.model import ServedModel
from trtspec.service.options import AdmissionOptions, ServeOptions
from trtspec.service.requests import ParsedRequest, parse_request
from trtspec.types import FinishReason, Method
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import speculation_pb2 as spec


async def test_events_are_typed_and_in_order() -> None:
    async with serving(FakeExecutor(script_of("abcd", 3))) as server, Client(server.address) as client:
        events = [event async for event in client.generate("hi", seed=3, max_draft_tokens=2)]
    accepted, first, second, finished = events
    assert isinstance(accepted, Accepted) and isinstance(first, Chunk) and isinstance(finished, Finished)
    assert (accepted.seed, accepted.method, accepted.max_draft_tokens) == (3, Method.NGRAM, 2)
    assert isinstance(second, Chunk) and second.text == "bcd" and second.passes[0].accepted == 2
    assert finished.reason is FinishReason.LENGTH and finished.completion_tokens == 4
    assert finished.stats is not None and finished.stats.completion_tokens == 4
    finished.stats.check()


async def test_every_kind_of_prompt_reaches_the_engine() -> None:
    executor = FakeExecutor(script_of("ab", 1))
    chat = [{"role": "user", "content": "hi"}]
    async with serving(executor) as server, Client(server.address) as client:
        for prompt in ("hi", list(ids_of("hi")), chat):
            await client.complete(prompt)
        chat_ids = await client.tokenize(chat)
    assert [live.prompt for live in executor.requests] == [ids_of("hi"), ids_of("hi"), chat_ids]


async def test_complete_collects_text_and_ids() -> None:
    async with serving(FakeExecutor(script_of("héllo", 2, 3))) as server, Client(server.address) as client:
        answer = await client.complete("x", stop=["lo"])
        final = await client.complete("x", granularity="final")
        info = await client.model_info()
    assert answer.text == "hél" and answer.finished.stop_string == "lo"
    assert final.text == "héllo" and final.token_ids == ids_of("héllo") == final.finished.outputs[0].token_ids
    assert answer.finished.outputs[0].text is None and answer.finished.outputs[0].token_ids is None
    assert answer.token_ids == ids_of("héllo")[: answer.finished.completion_tokens]
    assert info.model == "tiny"


@pytest.mark.parametrize("granularity", ["step", "token", "final"])
async def test_complete_collects_each_output_with_its_log_probabilities(granularity: str) -> None:
    executor = FakeExecutor(script_of("abc", 2), script_of("stuvw", 4), script_of("xy", 1), cached_tokens=1)
    async with serving(executor) as server, Client(server.address) as client:
        answer = await client.complete("hi", n=3, logprobs=1, prompt_logprobs=0, granularity=granularity, stop="v")
    assert [output.text for output in answer.outputs] == ["abc", "stu", "xy"]
    assert [output.token_ids for output in answer.outputs] == [ids_of("abc"), ids_of("stuv"), ids_of("xy")]
    for output in answer.outputs:
        assert output.logprobs == tuple(logprobs_of(id_, 1) for id_ in output.token_ids or ())
        assert output.completion_tokens == len(output.logprobs)
    assert [output.reason for output in answer.outputs] == [FinishReason.LENGTH, FinishReason.STOP, FinishReason.LENGTH]
    assert [output.stop_string for output in answer.outputs] == [None, "v", None]
    assert answer.text == "abc" and answer.finished.reason is FinishReason.LENGTH
    assert (answer.finished.completion_tokens, answer.finished.cached_prompt_tokens) == (9, 1)
    assert [item.chosen.token_id for item in answer.finished.prompt_logprobs] == list(ids_of("hi"))
    assert answer.finished.prompt_logprobs[0].chosen.logprob is None


async def test_an_option_that_does_not_exist_is_an_error_of_the_program() -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(TypeError, match="there is no option 'colour'; the options are temperature, "):
            client.generate("hi", colour="red")  # type: ignore[call-arg]


async def test_a_refusal_names_status_reason_and_field() -> None:
    async with serving(FakeExecutor()) as server, Client(server.address) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.complete("hi", temperature=-1.0)
    error = caught.value
    assert (error.status, error.reason, error.field) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        "sampling.temperature",
    )
    assert error.partial is None and "0 to 100" in str(error)


async def test_a_failure_in_mid_stream_has_the_partial_totals() -> None:
    executor = FakeExecutor([*script_of("abcd", 3), EngineLost("gone")])
    async with serving(executor) as server, Client(server.address) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.complete("hi")
    assert caught.value.reason == "ENGINE_LOST"
    assert caught.value.partial is not None and caught.value.partial.completion_tokens == 4


async def test_leaving_the_loop_cancels_the_request() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])
    async with serving(executor) as server, Client(server.address) as client:
        events = client.generate("hi")
        await anext(events)
        await events.aclose()
        await executor.freed.wait()


async def test_a_time_budget_ends_the_answer() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])
    async with serving(executor) as server, Client(server.address) as client:
        answer = await client.complete("hi", time_budget=0.05)
    assert answer.finished.reason is FinishReason.DEADLINE


async def test_ids_of_any_integer_type_are_sent() -> None:
    executor = FakeExecutor(script_of("ab", 1))
    async with serving(executor) as server, Client(server.address) as client:
        await client.complete(np.array(ids_of("hi")))
        await client.complete([np.int64(id_) for id_ in ids_of("hi")])
    assert [live.prompt for live in executor.requests] == [ids_of("hi")] * 2


async def test_every_option_reaches_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[pb.GenerateRequest] = []

    def recorded(request: pb.GenerateRequest, model: ServedModel, caller: Caller) -> ParsedRequest:
        seen.append(request)
        return parse_request(request, model, caller)

    monkeypatch.setattr(servicer, "parse_request", recorded)
    async with serving(FakeExecutor(script_of("ab", 1))) as server, Client(server.address) as client:
        await client.complete(
            "hi",
            temperature=0.5,
            top_k=3,
            top_p=0.25,
            min_p=0.125,
            repetition_penalty=1.5,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={7: -1.5, 8: 2},
            bad_words="no",
            seed=1,
            max_tokens=9,
            min_tokens=2,
            ignore_eos=True,
            stop_token_ids=[5],
            logprobs=0,
            prompt_logprobs=2,
            n=1,
            speculation="on",
            max_draft_tokens=2,
            granularity="step",
            request_id="r",
            model="tiny",
            stop="b",
            include_stop_string=True,
            stats_level="detailed",
            min_interval=0.9999999999,
            tenant="a",
            tags={"task": "list"},
            session_key="s",
            cache_salt="salt",
            priority=3,
            time_budget=20,
            full_output=True,
        )
    assert seen == [
        pb.GenerateRequest(
            text="hi",
            sampling={
                "temperature": 0.5,
                "top_k": 3,
                "top_p": 0.25,
                "min_p": 0.125,
                "repetition_penalty": 1.5,
                "presence_penalty": 0.5,
                "frequency_penalty": -0.5,
                "logit_bias": {7: -1.5, 8: 2},
                "bad_words": ["no"],
                "seed": 1,
            },
            stopping={
                "max_tokens": 9,
                "min_tokens": 2,
                "ignore_eos": True,
                "stop_token_ids": [5],
                "stop_strings": ["b"],
                "include_stop_string": True,
            },
            logprobs={"logprobs": 0, "prompt_logprobs": 2},
            n=1,
            speculation={
                "mode": "SPECULATION_MODE_ON",
                "max_draft_tokens": 2,
                "stats_level": "STATS_LEVEL_DETAILED",
            },
            request_id="r",
            model="tiny",
            stream_options={
                "granularity": "STREAM_GRANULARITY_STEP",
                "min_interval": {"seconds": 1},
                "include_full_output": True,
            },
            tenant="a",
            tags={"task": "list"},
            session_key="s",
            cache_salt="salt",
            priority=3,
            time_budget={"seconds": 20},
        )
    ]


@pytest.mark.parametrize(
    ("prompt", "options", "field", "allowed"),
    [
        ("hi", {"seed": -1}, "sampling.seed", "0 to 18446744073709551615"),
        ("hi", {"n": 2**31}, "n", "to 2147483647"),
        ("hi", {"logprobs": "all"}, "logprobs.logprobs", "a whole number"),
        ("hi", {"logit_bias": {"a": 1}}, "sampling.logit_bias", "a value of its type"),
        ("hi", {"bad_words": [1]}, "sampling.bad_words", "a list, each a text that UTF-8 can hold"),
        ("hi", {"max_tokens": 2**31}, "stopping.max_tokens", "to 2147483647"),
        ("hi", {"temperature": "hot"}, "sampling.temperature", "a number"),
        ("hi", {"granularity": "word"}, "stream_options.granularity", "step or token or final"),
        ("hi", {"speculation": "maybe"}, "speculation.mode", "default or off or on"),
        ("hi", {"stop": ["\udcff"]}, "stopping.stop_strings", "a list, each a text that UTF-8 can hold"),
        ("hi", {"time_budget": float("inf")}, "time_budget", "a number of seconds"),
        ("hi", {"min_interval": float("nan")}, "stream_options.min_interval", "a number of seconds"),
        ("hi", {"tags": {"a": 1}}, "tags", "a value of its type"),
        ("a\udcff" * 1000, {}, "text", "a text that UTF-8 can hold"),
        ([1.5], {}, "token_ids.ids", "a list, each a whole number"),
        ([{"role": "user", "colour": "red"}], {}, "chat.messages[0].colour", "only role, content"),
        ([{"role": "user"}, "hi"], {}, "chat.messages", "a mapping"),
        ([{"role": "user", 7: "x"}], {}, "chat.messages", "a mapping"),
        ([{"role": "user", "kind": "x", "path": "y"}], {}, "chat.messages[0].kind", "only role, content"),
        (None, {}, "prompt", "a text, token ids, or chat messages"),
        (5, {}, "prompt", "a text, token ids, or chat messages"),
        (b"hi", {}, "prompt", "a text, token ids, or chat messages"),
    ],
)
async def test_a_value_that_cannot_be_sent_is_refused_by_name(
    prompt: Prompt, options: dict[str, object], field: str, allowed: str
) -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(RequestFailed) as caught:
            await client.complete(prompt, **options)
    error = caught.value
    assert (error.status, error.reason, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", field)
    assert str(error).startswith(f"{field} is ") and allowed in str(error) and len(str(error)) < 250


async def test_a_full_queue_tells_how_long_to_wait() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])
    options = ServeOptions(port=0, admission=AdmissionOptions(max_queued_requests=0))
    async with serving(executor, options) as server, Client(server.address) as client:
        live = [client.generate("hi") for _ in range(LIMITS.max_batch_size)]
        for events in live:
            await anext(events)
        with pytest.raises(RequestFailed) as caught:
            await client.complete("hi")
        for events in live:
            await events.aclose()
    assert (caught.value.reason, caught.value.retry_after) == ("OVERLOADED", 1.0)


def test_what_a_newer_server_says_is_kept_as_a_number_or_passed_over() -> None:
    accepted = pb.Accepted(speculation=spec.AppliedSpeculation(method=42))
    event = convert.event(pb.GenerateResponse(accepted=accepted))
    assert isinstance(event, Accepted) and event.method == "unknown(42)"
    finished = convert.event(pb.GenerateResponse(finished=pb.Finished(outputs=[pb.Output(finish_reason=42)])))
    assert isinstance(finished, Finished) and finished.reason == "unknown(42)"
    assert "unknown(42)" in json.dumps(as_dict(finished))
    assert convert.event(pb.GenerateResponse()) is None
    assert isinstance(convert.event(pb.GenerateResponse(finished=pb.Finished())), Finished)


def test_counts_that_an_engine_does_not_tell_are_none() -> None:
    finished = pb.Finished(outputs=[pb.Output()], speculation=spec.SpeculationStats(decode_passes=3))
    event = convert.event(pb.GenerateResponse(finished=finished))
    assert isinstance(event, Finished) and event.stats is None
    chunk = convert.event(pb.GenerateResponse(chunk=pb.Chunk(passes=[spec.DecodePass(emitted_count=2)])))
    assert isinstance(chunk, Chunk) and chunk.passes[0].accepted is None and chunk.passes[0].emitted == 2
