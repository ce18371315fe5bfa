"""Bad input to a real server: the right status, the field and the range, and good requests right after."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from tests.live.servers import ENDLESS, Stream, refused
from trtspec.client import Client, Completion, RequestFailed
from trtspec.types import FinishReason
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

FLAGS = ("--kv-cache-mib", "1")
CONTEXT = 2048
"""What one MiB holds: a position of the tiny model takes 512 bytes."""
Code = grpc.StatusCode


async def good(client: Client) -> str:
    answer = await client.complete("the answer", max_tokens=12, ignore_eos=True)
    assert len(answer.token_ids) == 12
    return answer.text


async def refusal(channel: grpc.aio.Channel, fields: dict[str, Any]) -> grpc.aio.AioRpcError:
    """The error of a request before which nothing was sent."""
    message = pb.GenerateRequest(**({"text": "the answer"} if "token_ids" not in fields else {}) | fields)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rpc.InferenceStub(channel).Generate(message).read()
    return caught.value


def details(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.ErrorInfo, list[str]]:
    """What a program reads: the reason with its facts, and the fields that are wrong."""
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"]).details:
        assert detail.Unpack(info) or detail.Unpack(request)
    return info, [violation.field for violation in request.field_violations]


@pytest.mark.parametrize(
    ("fields", "field", "allowed"),
    [
        pytest.param({"text": ""}, "text", "at least one token", id="empty text"),
        pytest.param({"token_ids": {}}, "token_ids.ids", "at least one token", id="no ids"),
        pytest.param({"token_ids": {"ids": [9, 267]}}, "token_ids.ids[1]", "0 to 266", id="id beyond the vocabulary"),
        pytest.param({"token_ids": {"ids": [-1]}}, "token_ids.ids[0]", "0 to 266", id="negative id"),
        pytest.param({"sampling": {"temperature": -1}}, "sampling.temperature", "0 to 100", id="temperature -1"),
        pytest.param({"sampling": {"temperature": math.nan}}, "sampling.temperature", "0 to 100", id="temperature NaN"),
        pytest.param({"sampling": {"top_p": 0}}, "sampling.top_p", "above 0 and at most 1", id="top_p 0"),
        pytest.param({"stopping": {"max_tokens": 0}}, "stopping.max_tokens", "1 or more", id="max_tokens 0"),
        pytest.param(
            {"speculation": {"max_draft_tokens": 9}}, "speculation.max_draft_tokens", "1 to 8", id="draft too deep"
        ),
    ],
)
async def test_a_wrong_field_is_named_with_its_range_and_the_next_request_is_answered(
    client: Client, channel: grpc.aio.Channel, fields: dict[str, Any], field: str, allowed: str
) -> None:
    before = await good(client)
    error = await refusal(channel, fields)
    assert error.code() is Code.INVALID_ARGUMENT
    info, violations = details(error)
    assert (info.reason, info.domain, violations) == ("INVALID_FIELD", "trtspec", [field])
    assert info.metadata["field"] == field and allowed in info.metadata["allowed"]
    assert field in error.details() and allowed in error.details()
    assert await good(client) == before


async def test_a_prompt_longer_than_the_context_names_both_lengths_and_the_longest_one_is_answered(
    client: Client, channel: grpc.aio.Channel
) -> None:
    error = await refusal(channel, {"token_ids": {"ids": [9] * (CONTEXT + 5)}})
    assert error.code() is Code.INVALID_ARGUMENT
    info, _ = details(error)
    assert info.reason == "PROMPT_TOO_LONG"
    assert info.metadata == {"prompt_tokens": str(CONTEXT + 5), "max_context_tokens": str(CONTEXT)}
    assert f"at most {CONTEXT - 1}" in error.details()
    longest = await client.complete([9] * (CONTEXT - 1), ignore_eos=True)
    assert len(longest.token_ids) == 1 and longest.finished.reason is FinishReason.LENGTH


async def test_an_unknown_model_is_not_found_and_the_served_one_is(client: Client) -> None:
    error = await refused(client, model="other")
    assert error.status is Code.NOT_FOUND and error.reason == "MODEL_NOT_FOUND"
    served = (await client.model_info()).model
    assert repr(served) in str(error)
    answer = await client.complete("the answer", max_tokens=2, ignore_eos=True, model=served)
    assert len(answer.token_ids) == 2


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        pytest.param({"guided_decoding": {"regex": "(["}}, "guided_decoding.regex", id="expression"),
        pytest.param({"guided_decoding": {"json_schema": "{"}}, "guided_decoding.json_schema", id="schema"),
        pytest.param({"guided_decoding": {"grammar": "root ::= root"}}, "guided_decoding.grammar", id="no text"),
    ],
)
async def test_a_guide_that_makes_no_sense_is_refused_before_it_is_accepted(
    client: Client, channel: grpc.aio.Channel, fields: dict[str, Any], field: str
) -> None:
    """The engine's side finds it out; the service knows no grammars."""
    before = await good(client)
    error = await refusal(channel, fields)
    info, violations = details(error)
    assert error.code() is Code.INVALID_ARGUMENT and info.reason == "INVALID_FIELD" and violations == [field]
    answer = await client.complete("the answer", max_tokens=20, choice=["yes", "no"])
    assert answer.text in ("yes", "no") and answer.finished.reason is FinishReason.EOS
    assert await good(client) == before


async def test_an_oversized_message_is_resource_exhausted_and_names_both_sizes(client: Client) -> None:
    before = await good(client)
    limit = (await client.model_info()).limits.max_request_bytes
    error = await refused(client, "a" * limit)
    assert error.status is Code.RESOURCE_EXHAUSTED and f"vs. {limit})" in str(error)
    assert await good(client) == before


async def test_a_live_request_id_cannot_be_taken_and_its_owner_is_not_disturbed(client: Client) -> None:
    live = await Stream(client, "the answer", request_id="mine", max_tokens=400, ignore_eos=True).begin()
    error = await refused(client, request_id="mine")
    assert error.status is Code.ALREADY_EXISTS and error.reason == "DUPLICATE_REQUEST_ID" and "'mine'" in str(error)
    assert len((await live.end()).ids) == 400
    again = await client.complete("the answer", request_id="mine", max_tokens=400, ignore_eos=True)
    assert list(again.token_ids) == live.ids


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(" ", id="a space"),
        pytest.param("\n\t  \n", id="white space"),
        pytest.param("a", id="one character"),
        pytest.param([70], id="one id"),
        pytest.param("<|endoftext|>", id="end of text"),
        pytest.param("<|im_start|><|im_end|>", id="special tokens"),
        pytest.param([0, 1, 2, 0], id="special ids"),
        pytest.param([0], id="the end-of-text id"),
    ],
)
async def test_the_smallest_and_oddest_prompts_are_answered_alike_with_and_without_drafts(
    client: Client, prompt: str | list[int]
) -> None:
    plain = await client.complete(prompt, max_tokens=40, ignore_eos=True, speculation="off")
    drafted = await client.complete(prompt, max_tokens=40, ignore_eos=True, speculation="on")
    assert len(plain.token_ids) == 40
    assert (plain.token_ids, plain.text) == (drafted.token_ids, drafted.text)


async def test_a_call_that_is_closed_at_once_leaves_the_id_free(client: Client) -> None:
    live = await Stream(client, "the answer", request_id="closed", **ENDLESS).begin()
    await live.cancel()
    # The server learns of the end a moment later; until then the id is taken.
    answer: Completion | None = None
    while answer is None:
        try:
            answer = await client.complete("the answer", request_id="closed", max_tokens=3, ignore_eos=True)
        except RequestFailed as error:
            assert error.status is Code.ALREADY_EXISTS
    assert len(answer.token_ids) == 3
