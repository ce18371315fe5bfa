"""Many requests through one engine in this process: what comes out when each has ended."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from trtspec.decoding.engine import Engine
from trtspec.types import Failed, FinishReason, Request, StepOutput

_QUEUED = 2
"""Requests that wait, for each that runs: enough that the batch stays full."""


class Answer(NamedTuple):
    """A request that ended, and what it generated."""

    request: Request
    token_ids: tuple[int, ...]
    reason: FinishReason


def run_requests(engine: Engine, requests: Iterable[Request], batch_size: int) -> Iterator[Answer]:
    """Answer all requests, in the order in which they end. Raises the error of one that fails."""
    coming = iter(requests)
    live: dict[str, Request] = {}
    tokens: dict[str, list[int]] = {}
    while True:
        for request in islice(coming, max((1 + _QUEUED) * batch_size - len(live), 0)):
            engine.submit(request)
            live[request.request_id], tokens[request.request_id] = request, []
        if not live:
            return
        begun = engine.begin(time.monotonic())
        events = engine.finish(begun.plan) if begun.plan else ()
        for event in (*begun.events, *events):
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, StepOutput):
                tokens[event.request_id] += event.token_ids
                if event.finish:
                    done = live.pop(event.request_id)
                    yield Answer(done, tuple(tokens.pop(event.request_id)), event.finish.reason)
