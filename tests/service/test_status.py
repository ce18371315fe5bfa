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
from trtspec.service.assemble import OutputAssembler
from trtspec.service.detokenize import StopScanner
from trtspec.service.model import ServedModel
from trtspec.service.requests import parse_request
from trtspec.service.status import CODES, to_status
from trtspec.speculative import MAX_DRAFT_TOKENS
from trtspec.v1 import inference_pb2 as pb

MAX_TRAILER_BYTES = 8192
"""gRPC clients refuse more metadata by default."""


def test_every_request_error_has_a_status() -> None:
    assert set(CODES) == set(errors.RequestError.__subclasses__())
    assert len({kind.reason for kind in CODES}) == len(CODES)


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


def test_the_largest_partial_fits_into_trailers() -> None:
    output = OutputAssembler(str, (), StopScanner(()), keep_output=True, keep_passes=True)
    many = (2**62,) * (MAX_DRAFT_TOKENS + 1)
    output.stats = SpeculationStats(*[2**62] * 8, histogram=many, drafted_at=many, accepted_at=many)
    model = ServedModel(FakeExecutor().info(), GenerationDefaults())
    now = time.monotonic()
    clock = responses.Clock(now, now + 1e6, now + 2e6, now + 3e6)
    parsed = parse_request(pb.GenerateRequest(text="hi"), model)
    partial = responses.finished(parsed, 2**30, output, clock, now + 4e6, totals_only=True)
    assert 1024 < partial.ByteSize() < MAX_TRAILER_BYTES / 2


def test_an_error_of_any_length_fits_into_trailers() -> None:
    status = to_status(errors.InvalidField("\U0001f600" * 9000, "é" * 50_000, "ö" * 9000))
    message = status.details
    assert isinstance(message, str) and len(message.encode()) <= 1024 and message.endswith("…")
    escaped = 3 * len(message.encode())
    # Binary values travel in base64.
    packed = sum(len(value) for _, value in status.trailing_metadata or ()) * 4 / 3
    assert escaped + packed < MAX_TRAILER_BYTES
