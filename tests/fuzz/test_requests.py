"""Any request ends with a status that says what is wrong with it: never INTERNAL, never silence."""

from __future__ import annotations

import asyncio
import json
import random

import grpc
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.build.test_damaged_files import with_wrong_bytes
from tests.fakes import LIMITS, FakeExecutor, Pass, ids_of, serving
from tests.fuzz.messages import messages, nested, varint
from tests.models import tiny_tokenizer
from tests.service.test_requests import MODEL
from trtspec.errors import InvalidField, RequestError
from trtspec.service.options import ServeOptions
from trtspec.service.requests import parse_request
from trtspec.service.resolve import resolve
from trtspec.service.status import CODES, to_status
from trtspec.service.text import Tokenizer
from trtspec.v1 import inference_pb2 as pb

Code = grpc.StatusCode
TOKENIZER = Tokenizer(tiny_tokenizer())
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(max_examples=3_000, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
PROMPT = st.sampled_from([{}, {"text": "the answer"}, {"token_ids": {"ids": [1, 2]}}])
REFUSALS = frozenset(CODES.values()) - {Code.INTERNAL}


def check(request: pb.GenerateRequest) -> None:
    """The way of a request to the engine: it is refused, or all that the engine would get is in range."""
    try:
        parsed = parse_request(request, MODEL)
        core = resolve(parsed, TOKENIZER, MODEL, None)
    except RequestError as error:
        status = to_status(error)
        assert status.code in REFUSALS, error
        return
    assert 1 <= len(core.prompt) < LIMITS.max_context_tokens
    assert 1 <= core.max_tokens <= LIMITS.max_context_tokens - len(core.prompt)
    assert all(0 <= id_ < LIMITS.vocabulary_size for id_ in core.prompt)
    assert 1 <= core.n <= LIMITS.max_batch_size and 0 <= core.seed < 2**64
    assert 0 <= core.max_draft_tokens <= LIMITS.max_draft_tokens


def with_prompt(request: pb.GenerateRequest, prompt: dict[str, object]) -> pb.GenerateRequest:
    if prompt:
        request.MergeFrom(pb.GenerateRequest(**prompt))
    return request


@QUICK
@given(messages(), PROMPT)
@example(pb.GenerateRequest(time_budget={"seconds": 2**63 - 1, "nanos": 2**31 - 1}), {"text": "x"})
@example(pb.GenerateRequest(time_budget={"seconds": -(2**63), "nanos": -(2**31)}), {"text": "x"})
@example(pb.GenerateRequest(sampling={"temperature": float("nan")}), {"text": "x"})
@example(pb.GenerateRequest(sampling={"logit_bias": {2**31 - 1: float("inf")}}), {"text": "x"})
def test_any_request_is_served_or_refused(request: pb.GenerateRequest, prompt: dict[str, object]) -> None:
    check(with_prompt(request, prompt))


@pytest.mark.slow
@pytest.mark.timeout(900)
@LONG
@given(messages(), PROMPT)
def test_many_requests_are_served_or_refused(request: pb.GenerateRequest, prompt: dict[str, object]) -> None:
    check(with_prompt(request, prompt))


def hostile() -> list[bytes]:
    """Messages that a client's library would not write."""
    tool = b"\x0a" + varint(len(body := b"\x0a\x01x\x12" + varint(len(deep := nested(40_000))) + deep)) + body
    chat = b"\x12" + varint(len(tool)) + tool
    field = pb.GenerateRequest.DESCRIPTOR.fields_by_name["chat"].number << 3 | 2
    return [
        b"\xff" * 64,
        b"\x0a" + varint(2**63) + b"x",
        b"\x0a\x05\xff\xfe\xfd\xfc\xfb",
        varint(2**32) + b"\0",
        varint(field) + varint(len(chat)) + chat,
        b"\x0b" * 200,
    ]


async def status_of(channel: grpc.aio.Channel, method: str, body: bytes) -> grpc.StatusCode:
    call = channel.unary_stream(f"/trtspec.v1.Inference/{method}")(body, timeout=60)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return Code.OK


def broken(rng: random.Random) -> bytes:
    sampling = {"temperature": 0.7, "top_k": 5, "seed": 2**60, "logit_bias": {3: 1.0, 4: -2.0}}
    request = pb.GenerateRequest(text="the answer", sampling=sampling, tags={"a": "b"}, time_budget={"seconds": 20})
    request.stopping.stop_strings.extend(["one", "two"])
    whole = request.SerializeToString()
    for _ in range(rng.randint(1, 4)):
        whole = with_wrong_bytes(whole + b"\0", len(whole), rng)
    return whole


@pytest.mark.parametrize(
    "rounds", [pytest.param(100, id="some"), pytest.param(5_000, id="many", marks=[pytest.mark.slow])]
)
@pytest.mark.timeout(900)
async def test_any_bytes_get_an_answer(rounds: int, caplog: pytest.LogCaptureFixture) -> None:
    bodies = [*hostile(), *(broken(random.Random(seed)) for seed in range(rounds))]
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Pass(ids_of("b"))])
    async with serving(executor, ServeOptions(port=0)) as server:
        seen = set()
        for method in ("Generate", "Tokenize", "GetModelInfo"):
            for begin in range(0, len(bodies), 4):  # as many as run at once
                part = bodies[begin : begin + 4]
                seen |= set(await asyncio.gather(*(status_of(server.channel, method, body) for body in part)))
    assert seen <= REFUSALS | {Code.OK} and {Code.INVALID_ARGUMENT, Code.OK} <= seen
    assert caplog.messages == []


@pytest.mark.parametrize(("depth", "parsed"), [(20, True), (45, True), (90, False), (5000, False)])
def test_deep_values_are_taken_or_refused(depth: int, parsed: bool) -> None:
    deep = nested(depth)
    entry = b"\x0a\x01a\x12" + varint(len(deep)) + deep
    struct = b"\x0a" + varint(len(entry)) + entry
    try:
        value = Struct.FromString(struct)
    except DecodeError:
        assert not parsed, "the library's own bound, of which the guard makes a refusal"
        return
    assert parsed
    messages = [{"role": "user", "content": "x"}]
    for chat in (
        pb.Chat(messages=messages, tools=[value]),
        pb.Chat(messages=messages, template_arguments=value),
        pb.Chat(messages=[{"role": "assistant", "tool_calls": [value]}]),
    ):
        check(pb.GenerateRequest(chat=chat))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("logit_bias", "sampling.logit_bias is 1000000 entries"),
        ("tags", "tags is 100000 entries"),
        ("stop_strings", "stopping.stop_strings is 1000000 entries"),
        ("bad_words", "sampling.bad_words is 1000000 entries"),
        ("ids", "the prompt has 1000000 tokens"),
    ],
)
def test_a_million_entries_are_counted_and_not_looked_at(field: str, message: str) -> None:
    request = pb.GenerateRequest(text="x")
    many = range(1_000_000)
    match field:
        case "logit_bias":
            request = pb.GenerateRequest(text="x", sampling={"logit_bias": dict.fromkeys(many, 1.0)})
        case "tags":
            request = pb.GenerateRequest(text="x", tags={str(index): "" for index in many[::10]})
        case "stop_strings":
            request.stopping.stop_strings.extend(["x"] * len(many))
        case "bad_words":
            request.sampling.bad_words.extend(["x"] * len(many))
        case "ids":
            request = pb.GenerateRequest(token_ids={"ids": [1] * len(many)})
    with pytest.raises(RequestError, match=message) as caught:
        parse_request(request, MODEL)
    assert len(json.dumps(caught.value.details)) < 400 and isinstance(caught.value, InvalidField) == (field != "ids")
