"""The status table: every error of a request has a code, and what goes into trailers stays small."""

from __future__ import annotations

import time

import grpc
import pytest

from tests.fakes import FakeExecutor
from trtspec import errors
from trtspec.decoding.stats import SpeculationStats
from trtspec.generation import GenerationDefaults
from trtspec.service import responses
from trtspec.service.assemble import End, OutputAssembler
from trtspec.service.detokenize import StopScanner
from trtspec.service.model import ServedModel
from trtspec.service.requests import parse_request
from trtspec.service.status import CODES, to_status
from trtspec.speculative import MAX_DRAFT_TOKENS
from trtspec.types import FinishReason, Method, TokenLogprob, TokenLogprobs
from trtspec.v1 import inference_pb2 as pb

MAX_TRAILER_BYTES = 8192
"""gRPC clients refuse more metadata by default."""


def kinds_of(error: type[errors.RequestError]) -> set[type[errors.RequestError]]:
    """All kinds of it, and their kinds."""
    own = set(error.__subclasses__())
    return own.union(*map(kinds_of, own))


def test_every_request_error_has_a_status() -> None:
    assert set(CODES) == kinds_of(errors.RequestError)
    assert len({kind.reason for kind in CODES}) == len(CODES)


NOTHING = SpeculationStats()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.EngineLost("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.EngineFault("x"), grpc.StatusCode.INTERNAL),
        (errors.DeadlineExceeded("x"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.ConfigError("a setting"), grpc.StatusCode.INTERNAL),
    ],
)
def test_the_code_follows_the_error(error: Exception, code: grpc.StatusCode) -> None:
    assert to_status(error).code is code


@pytest.mark.parametrize("n", [1, 64, 1000])
@pytest.mark.parametrize("end", [None, End(FinishReason.STOP, "x" * 9000), End(FinishReason.EOS, None, 2**31 - 1)])
def test_the_largest_partial_fits_into_trailers(n: int, end: End | None, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = [OutputAssembler(str, (), StopScanner(()), keep_output=True, keep_passes=True) for _ in range(n)]
    many = (2**62,) * (MAX_DRAFT_TOKENS + 1)
    huge = SpeculationStats(*[2**62] * 8, histogram=many, drafted_at=many, accepted_at=many)
    monkeypatch.setattr(OutputAssembler, "stats", property(lambda self: huge if self is outputs[0] else NOTHING))
    for output in outputs:
        output.count, output.end = 2**20, end
    model = ServedModel(FakeExecutor().info(), GenerationDefaults())
    now = time.monotonic()
    clock = responses.Clock(now, now + 1e6, now + 2e6, now + 3e6)
    parsed = parse_request(pb.GenerateRequest(text="hi"), model)
    prompt_logprobs = (TokenLogprobs(TokenLogprob(1, -1.0, 1)),) * 1000
    answer = responses.Answer(parsed, Method.NGRAM, 2**29, 2**29, prompt_logprobs, outputs, clock)
    partial = responses.partial(answer, now + 4e6)
    assert 1024 < partial.ByteSize() < MAX_TRAILER_BYTES / 2
    assert partial.usage.completion_token_count == n * 2**20
    assert partial.outputs[0].finish_reason == getattr(pb, f"FINISH_REASON_{end.reason.name if end else 'ERROR'}")


def test_an_error_of_any_length_fits_into_trailers() -> None:
    status = to_status(errors.InvalidField("\U0001f600" * 9000, "é" * 50_000, "ö" * 9000))
    message = status.details
    assert isinstance(message, str) and len(message.encode()) <= 1024 and message.endswith("…")
    escaped = 3 * len(message.encode())
    # Binary values travel in base64.
    packed = sum(len(value) for _, value in status.trailing_metadata or ()) * 4 / 3
    assert escaped + packed < MAX_TRAILER_BYTES
