"""Real processes of the command line, and requests that are read step by step."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpc import StatusCode
from grpc.aio import Channel
from grpc_health.v1 import health_pb2, health_pb2_grpc

from trtspec.client import Accepted, Chunk, Client, Finished, Pass, RequestFailed

COMMAND = (sys.executable, "-m", "trtspec")
ENDLESS = {"max_tokens": 16000, "ignore_eos": True, "speculation": "off"}
"""Far more tokens than any test waits for: such a request ends by what the test does to it."""


@dataclass(frozen=True)
class Ended:
    """What a process left."""

    code: int
    out: str
    err: str


def run(*arguments: str | Path) -> Ended:
    """Run a command of its own session to its end; nothing of it may outlive it."""
    command = [*COMMAND, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            out, err = process.communicate(timeout=90)
            assert members(process.pid) == [], "a process outlived the command"
        finally:
            end(process.pid)
    return Ended(process.returncode, out, err)


class LiveServer:
    """A `trtspec serve` process that answers requests."""

    def __init__(self, engine: Path, log: Path, *flags: str) -> None:
        self._log = log
        arguments = [*COMMAND, "serve", str(engine), "--port", "0", *flags]
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                arguments, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
            )
        assert self._process.stdout
        self.line = self._process.stdout.readline()
        if not self.line.startswith("SERVING "):
            self.close()
            raise AssertionError(f"the server did not start: {self.line}{self.log}")
        self.address = self.line.split()[1]

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def worker(self) -> int:
        """Process id of the engine."""
        [worker] = self.running("trtspec.executors.worker")
        return worker

    def running(self, module: str) -> list[int]:
        """Ids of the server's processes that run a module."""
        return [pid for pid in members(self._process.pid) if module in command_line(pid)]

    def kill_worker(self) -> None:
        os.kill(self.worker, signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to all processes, as a terminal or a service manager does."""
        os.killpg(self._process.pid, number)

    def wait(self) -> int:
        """The exit code, once the server has ended by itself; nothing of it may be left."""
        code = self._process.wait(60)
        assert members(self._process.pid) == [], "a process outlived the server"
        return code

    def close(self) -> None:
        """Make sure that all is gone, whatever happened in a test."""
        end(self._process.pid)
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


StartServer = Callable[..., LiveServer]


def members(session: int) -> list[int]:
    """Ids of a session's processes that are no zombies; orphans are found, too."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of, *_ = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if int(of) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def command_line(pid: int) -> list[str]:
    """The arguments of a process; none where it ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def end(session: int) -> None:
    """Kill what is left of a session."""
    for pid in members(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Stream:
    """A request in flight, and what came of it so far."""

    def __init__(self, client: Client, prompt: Any, **options: Any) -> None:
        self._events = client.generate(prompt, **options)
        self.accepted: Accepted | None = None
        self.chunks: list[Chunk] = []
        self.finished: Finished | None = None

    @property
    def ids(self) -> list[int]:
        return [id_ for chunk in self.chunks for id_ in chunk.token_ids]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def passes(self) -> list[Pass]:
        return [record for chunk in self.chunks for record in chunk.passes]

    async def begin(self, chunks: int = 1) -> Stream:
        """Read until so many chunks are there."""
        while len(self.chunks) < chunks:
            self._take(await anext(self._events))
        return self

    async def end(self) -> Stream:
        """Read the rest."""
        async for event in self._events:
            self._take(event)
        return self

    async def failure(self) -> RequestFailed:
        """Read the rest, which is an error."""
        try:
            await self.end()
        except RequestFailed as error:
            return error
        raise AssertionError(f"the request did not fail; it ended with {self.finished}")

    async def cancel(self) -> None:
        """Close the call."""
        await self._events.aclose()

    def _take(self, event: Accepted | Chunk | Finished) -> None:
        match event:
            case Accepted():
                self.accepted = event
            case Chunk():
                self.chunks.append(event)
            case Finished():
                self.finished = event


class HealthWatch:
    """The health service's own stream of changes."""

    def __init__(self, channel: Channel) -> None:
        self._call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())

    async def next(self) -> str:
        """The next status by its name."""
        name: str = health_pb2.HealthCheckResponse.ServingStatus.Name((await self._call.read()).status)
        return name

    async def closed(self) -> StatusCode:
        """The status with which the server ends the stream."""
        code: StatusCode = await self._call.code()
        return code

    def cancel(self) -> None:
        self._call.cancel()


async def refused(client: Client, prompt: Any = "the answer", **options: Any) -> RequestFailed:
    """The error of a request before which nothing was sent."""
    stream = Stream(client, prompt, **options)
    error = await stream.failure()
    assert stream.accepted is None and error.partial is None
    assert error.status is not StatusCode.OK
    return error
