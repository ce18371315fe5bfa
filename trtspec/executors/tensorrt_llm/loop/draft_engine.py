"""The draft engine of our own loop: an executor in a child of the worker, since a process leads one executor only.

TensorRT-LLM ties the executor that leads to its process and to MPI's; a second one is not documented beside it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from trtspec.errors import EngineFolderError
from trtspec.executors.messages import Close, OpenFailed, pack, receive
from trtspec.ranks import alone

_CLOSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class OpenDraft:
    """The first message to the child."""

    directory: Path
    arguments: Mapping[str, Any]
    """Of `ExecutorConfig`."""
    logits_size: int


@dataclass(frozen=True, slots=True)
class DraftReady:
    """The child's executor is open and warm."""


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Requests, by the parent's ids."""

    asked: Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CancelDraft:
    request_id: int


class Reason(NamedTuple):
    name: str


@dataclass(frozen=True, slots=True)
class DraftAnswer:
    """Shaped like the last response to a request, and its result in one."""

    request_id: int
    output_token_ids: tuple[tuple[int, ...], ...] = ((),)
    finish_reasons: tuple[Reason, ...] = ()
    error_msg: str = ""
    is_final: bool = True

    def has_error(self) -> bool:
        return bool(self.error_msg)

    @property
    def result(self) -> DraftAnswer:
        return self


@dataclass(frozen=True, slots=True)
class DraftAnswers:
    answers: tuple[DraftAnswer, ...]


class DraftEngine:
    """Implements `Engine` over a child process: `trtspec.executors.tensorrt_llm.loop.draft_worker`."""

    def __init__(self, first: OpenDraft) -> None:
        """Start it, and wait until it is warm. Raises what it could not be opened for."""
        self._ids = count(1)
        self._reading = threading.Lock()
        """Held while somebody waits for an answer, which an end of the process ends."""
        self._channel, theirs = socket.socketpair()
        module = "trtspec.executors.tensorrt_llm.loop.draft_worker"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=alone()
            )
        self._send(first)
        answer = receive(self._channel)
        if not isinstance(answer, DraftReady):
            self.shutdown()
            if isinstance(answer, OpenFailed):
                raise answer.error
            raise EngineFolderError(f"{first.directory}: the process of the draft engine {self._fate} while it opened")

    def enqueue(self, asked: Sequence[Mapping[str, Any]]) -> list[int]:
        ids = [next(self._ids) for _ in asked]
        self._send(Enqueue(dict(zip(ids, asked, strict=True))))
        return ids

    def cancel_request(self, request_id: int) -> None:
        self._send(CancelDraft(request_id))

    def await_responses(self, timeout: timedelta) -> Sequence[DraftAnswer]:
        with self._reading:
            if self._channel.fileno() < 0:
                raise RuntimeError("the draft engine was shut down")
            if not select.select([self._channel], [], [], timeout.total_seconds())[0]:
                return ()
            message = receive(self._channel)
        if isinstance(message, DraftAnswers):
            return message.answers
        raise RuntimeError(f"the process of the draft engine {self._fate}")

    def get_latest_iteration_stats(self) -> Sequence[Any]:
        """The target's are told."""
        return ()

    def shutdown(self) -> None:
        self._send(Close())
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._reading:
            self._channel.close()

    def _send(self, message: object) -> None:
        """To a process that died nothing needs to be said: who waits for its answers is told."""
        with contextlib.suppress(OSError):
            self._channel.sendall(pack(message))

    @property
    def _fate(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)  # whose channel is closed, it is dying
            return f"died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
        return "is out of reach"
