"""The request log: its fields, and what a disk can do to it."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes import FakeExecutor, Serving, script_of, serving
from trtspec import logs
from trtspec.client import Client, RequestFailed
from trtspec.errors import ConfigError, EngineFault
from trtspec.service.observing import Arrival, Clock, Summary
from trtspec.service.options import ServeOptions, TelemetryOptions
from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry import line_writer
from trtspec.service.telemetry.line_writer import LineWriter
from trtspec.service.telemetry.request_log import RequestLog
from trtspec.service.telemetry.running import counting
from trtspec.service.telemetry.trace_context import trace_id

TRACE = "0af7651916cd43dd8448eb211c80319c"


def options(path: Path, **more: Any) -> ServeOptions:
    return ServeOptions(port=0, telemetry=TelemetryOptions(request_log=path, **more))


async def logged(
    path: Path, executor: FakeExecutor, ask: Callable[[Serving], Any], **more: Any
) -> list[dict[str, Any]]:
    """The lines of what is asked of a server."""
    async with counting(options(path, **more)) as telemetry, serving(executor, observer=telemetry.observer) as server:
        await ask(server)
    return [json.loads(line) for line in path.read_text().splitlines()]


async def complete(server: Serving, **asked: Any) -> None:
    async with Client(server.address) as client:
        await client.complete("a secret", request_id="r1", tags={"task": "x"}, **asked)


async def test_a_line_has_the_fields_that_others_read(tmp_path: Path) -> None:
    executor = FakeExecutor(script_of("abcdef", 3, 2), cached_tokens=1)
    [line] = await logged(tmp_path / "log", executor, complete)
    timings = line.pop("timings")
    assert set(timings) == {"queue_ms", "time_to_first_token_ms", "prefill_ms", "decode_ms", "total_ms"}
    assert 0 <= timings["queue_ms"] <= timings["time_to_first_token_ms"] <= timings["total_ms"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("time"))
    assert line.pop("peer").startswith("ipv4:127.0.0.1:") and line.pop("message_bytes") > 10
    assert line == {
        "event": "request",
        "status": "OK",
        "client": "127.0.0.1",
        "request_id": "r1",
        "tags": {"task": "x"},
        "method": "ngram",
        "max_draft_tokens": 4,
        "prompt_tokens": 8,
        "cached_prompt_tokens": 1,
        "completion_tokens": 6,
        "outputs": [{"finish_reason": "length", "tokens": 6}],
        "speculative_decoding": {
            "num_spec_steps": 2,
            "num_nonspec_steps": 0,
            "num_draft_tokens": 5,
            "num_accepted_draft_tokens": 3,
            "num_verified_nodes": 5,
            "num_emitted_tokens": 5,
            "mean_acceptance_length": 2.5,
            "draft_acceptance_rate": 0.6,
            "tokens_per_pass": 2.5,
            "acceptance_histogram": [0, 1, 1],
            "accepted_per_position": [2, 1],
            "drafted_per_position": [2, 2, 1],
        },
        "derived": False,
    }


async def test_prompts_are_written_only_where_asked_for(tmp_path: Path) -> None:
    for wanted in (False, True):
        path = tmp_path / f"log{wanted}"
        [line] = await logged(path, FakeExecutor(script_of("ab", 1)), complete, log_prompts=wanted)
        assert ("secret" in path.read_text()) == wanted
        assert (line.get("prompt") == "a secret") == wanted


async def test_failures_are_lines_too_and_what_is_unknown_is_left_out(tmp_path: Path) -> None:
    async def ask(server: Serving) -> None:
        async with Client(server.address) as client:
            for asked in ({}, {"max_draft_tokens": 99}):
                with pytest.raises(RequestFailed):
                    await client.complete("hi", **asked)

    failed, refused = await logged(tmp_path / "log", FakeExecutor([EngineFault("NaN")]), ask)
    assert (failed["status"], failed["reason"]) == ("INTERNAL", "ENGINE_FAULT")
    assert failed["outputs"] == [{"finish_reason": "error", "tokens": 0}]
    assert "speculative_decoding" not in failed and set(failed["timings"]) == {"queue_ms", "total_ms"}
    assert (refused["status"], refused["reason"]) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert set(refused) == {"time", "event", "status", "reason", "peer", "message_bytes", "timings"}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", TRACE),
        (f"cc-{TRACE}-b7ad6b7169203331-01-later", TRACE),
        (f"00-{TRACE}-b7ad6b7169203331-01-more", None),
        (f"ff-{TRACE}-b7ad6b7169203331-01", None),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", None),
        ("nonsense\n", None),
    ],
)
def test_the_trace_of_the_caller_is_named(value: str, found: str | None) -> None:
    assert trace_id([("other", b"x"), ("traceparent", value)]) == found


async def test_a_full_disk_costs_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    executor = FakeExecutor(script_of("ab", 1))
    async with (
        counting(options(Path("/dev/full"))) as telemetry,
        serving(executor, observer=telemetry.observer) as server,
        Client(server.address) as client,
    ):
        dropped = telemetry.registry.counter(names.LOG_DROPPED)
        for count in range(1, 4):
            assert (await client.complete("hi")).text == "ab"
            while dropped.value < count:
                await asyncio.sleep(0.01)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "/dev/full cannot be written (No space left on device); lines are dropped" in caplog.text


class Lines:
    """A writer and what it dropped."""

    def __init__(self, path: Path) -> None:
        self.dropped = 0
        self.changed = threading.Condition()
        self.writer = LineWriter(path, "--request-log", self.drop)

    def drop(self, count: int) -> None:
        with self.changed:
            self.dropped += count
            self.changed.notify_all()

    def wait_for_drops(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.dropped >= count, 30)


def wait_until(true: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(3000):
        if true():
            return
        done.wait(0.01)
    raise AssertionError("it never came true")


def test_a_disk_that_fills_up_and_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of lines that wait together one fits, of the next one a part, and then nothing; later there is room."""
    path, room, waiting = tmp_path / "log", [16], threading.Event()
    real = os.write

    def write(file: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{file}") != str(path):
            return real(file, data)
        assert waiting.wait(30)
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(file, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    lines = Lines(path)
    lines.writer.write(b"first")
    wait_until(lambda: lines.writer._lines.empty())
    for text in (b"second", b"third", b"fourth"):
        lines.writer.write(text)
    waiting.set()
    lines.wait_for_drops(2)
    assert path.read_bytes() == b"first\nsecond\nthi"
    room[0] = 1000
    for text in (b"fifth", b"sixth"):
        lines.writer.write(text)
        wait_until(lambda end=text + b"\n": path.read_bytes().endswith(end))
    lines.writer.close()
    assert path.read_bytes() == b"first\nsecond\nthi\nfifth\nsixth\n" and lines.dropped == 2
    assert [record.message for record in caplog.records] == [
        f"{path} cannot be written (No space left on device); lines are dropped until it can",
        f"{path} is written again; 2 lines were dropped",
    ]


def test_a_file_that_was_moved_is_left_and_made_anew(tmp_path: Path) -> None:
    path, old = tmp_path / "log", tmp_path / "log.1"
    lines = Lines(path)
    lines.writer.write(b"one")
    wait_until(lambda: path.read_bytes() == b"one\n")
    path.rename(old)
    lines.writer.write(b"two")
    wait_until(lambda: path.exists() and path.read_bytes() == b"two\n")
    path.unlink()
    lines.writer.write(b"three")
    lines.writer.close()
    assert (old.read_bytes(), path.read_bytes(), lines.dropped) == (b"one\n", b"three\n", 0)


def test_a_disk_that_hangs_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "CLOSE_SECONDS", 0.05)
    path, hanging, going = tmp_path / "log", threading.Event(), threading.Event()
    real = os.write

    def write(file: int, data: bytes) -> int:
        if data.startswith(b"line"):
            hanging.set()
            going.wait(30)
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    lines = Lines(path)
    lines.writer.write(b"line")
    assert hanging.wait(30)
    for _ in range(line_writer.MOST_WAITING + 3):
        lines.writer.write(b"more")
    assert lines.dropped == 3
    lines.writer.close()
    going.set()
    wait_until(lambda: path.read_bytes().count(b"\n") == 1 + line_writer.MOST_WAITING)
    lines.writer.close()


def test_the_log_of_the_server_can_be_the_place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = Lines(Path("/dev/stderr"))
    lines.writer.write(b"here")
    lines.writer.close()
    assert capfd.readouterr().err == "here\n"


def test_a_file_that_cannot_be_opened_is_told_under_its_flag(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="--request-log .*nowhere/log cannot be opened \\(No such file or directory\\)"
    ):
        LineWriter(tmp_path / "nowhere" / "log", "--request-log", lambda _: None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"log_prompts": True}, "--log-prompts .* add --request-log FILE"),
        ({"metrics_compatibility": "vllm"}, "--metrics-compatibility is vllm, .* add --status-port PORT"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TelemetryOptions(**settings)


def test_the_file_is_not_for_everybody(tmp_path: Path) -> None:
    Lines(tmp_path / "log").writer.close()
    assert (tmp_path / "log").stat().st_mode & 0o007 == 0


def test_texts_that_are_no_unicode_are_written_all_the_same(tmp_path: Path) -> None:
    written: list[bytes] = []

    class Kept:
        def write(self, line: bytes) -> None:
            written.append(line)

    log = RequestLog(Kept(), with_prompts=False)  # type: ignore[arg-type] # writes, as the real one
    log.arrived(Arrival(0.0, 1, "peer\ud800\n", ())).ended(Summary(Clock(0.0), 1.0, grpc.StatusCode.OK, ""))
    assert b"\n" not in written[0] and json.loads(written[0])["peer"] == "peer?\n"


def test_the_servers_own_log_as_json() -> None:
    record = logging.LogRecord("trtspec.x", logging.ERROR, "f", 1, 'it "%s"', ("broke",), None)
    line = json.loads(logs.Json("front-end 2", logs.WithoutMessages()).format(record))
    assert line.pop("time")
    assert line == {
        "event": "log",
        "level": "ERROR",
        "logger": "trtspec.x",
        "message": 'it "broke"',
        "process": "front-end 2",
    }
    try:
        raise ValueError("why")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    for exceptions, told in ((logging.Formatter(), "ValueError: why"), (logs.WithoutMessages(), "ValueError (its")):
        text = logs.Json("", exceptions).format(record)
        assert "\n" not in text and told in json.loads(text)["exception"] and "process" not in json.loads(text)
