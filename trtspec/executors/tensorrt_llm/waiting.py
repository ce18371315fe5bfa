"""The threads that wait for the responses of TensorRT-LLM's executors: every batch of them becomes one message."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

from trtspec.executors.tensorrt_llm.engines import Engine

_POLL = timedelta(seconds=1)
"""How long a waiting thread is out of reach."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch of responses of one executor."""

    engine: str
    responses: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Broken:
    """A waiting thread can go on no more."""

    reason: str


def wait_for_responses(engines: Mapping[str, Engine], inbox: SimpleQueue[Any]) -> list[threading.Thread]:
    """Start a thread for each executor, which ends once it is shut down or lost."""
    threads = [
        threading.Thread(target=_wait, args=(name, engine, inbox), name=f"trtspec-{name}-responses", daemon=True)
        for name, engine in engines.items()
    ]
    for thread in threads:
        thread.start()
    return threads


def _wait(name: str, engine: Engine, inbox: SimpleQueue[Any]) -> None:
    while True:
        try:
            if responses := engine.await_responses(timeout=_POLL):
                inbox.put(Arrived(name, responses))
        except RuntimeError as error:
            inbox.put(Broken(str(error)))
            return
