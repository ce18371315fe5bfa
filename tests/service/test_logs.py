"""What a client sends does not reach the log, whatever happens to its request."""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncGenerator, Iterator

import grpc
import pytest

from tests.fakes import FakeExecutor, serving
from trtspec import logs
from trtspec.types import Request, RequestEvent
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

CANARY = "canary-in-the-prompt"


class Falling(FakeExecutor):
    """An engine with a bug, whose error quotes what it was asked; and so does the one that it came from."""

    def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        try:
            raise ValueError(f"cannot take {CANARY}")
        except ValueError as error:
            raise KeyError(CANARY) from error


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log as the command writes it."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        logs.set_up("front-end 1")
        [handler] = root.handlers
        assert isinstance(handler, logging.StreamHandler)
        stream = io.StringIO()
        handler.setStream(stream)
        yield stream
    finally:
        root.handlers[:] = before
        root.setLevel(level)


async def test_an_internal_error_is_told_by_kind_and_place(log: io.StringIO) -> None:
    async with serving(Falling()) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest(text=CANARY)).read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    told = log.getvalue()
    incident = str(caught.value.details()).split()[2].rstrip(";")
    assert f"ERROR front-end 1: internal error {incident}\n" in told
    assert told.index("ValueError (its") < told.index("which caused:") < told.index("KeyError (its")
    assert told.count("in generate\n") == 2 and "servicer.py" in told
    assert told.count(CANARY) == 0 and CANARY not in str(caught.value)


def test_messages_are_there_for_those_who_want_them(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        logs.set_up(messages=True)
        try:
            raise ValueError(CANARY)
        except ValueError:
            logging.getLogger("x").exception("it failed")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert "ERROR it failed\nTraceback (most recent call last):\n" in (told := capsys.readouterr().err)
    assert told.endswith(f"ValueError: {CANARY}\n")


def test_the_chain_of_an_error_ends_and_leaves_out_what_was_suppressed() -> None:
    try:
        try:
            raise ValueError("a")
        except ValueError:
            raise TypeError("b") from None
    except TypeError as error:
        assert "ValueError" not in logs.trace(error)
    one, other = ValueError("a"), TypeError("b")
    one.__cause__, other.__cause__ = other, one
    assert logs.trace(one).count("its message") == 2
