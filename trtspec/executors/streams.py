"""The parent's side of live requests: a mailbox each, where outputs that nobody has read yet are merged.

A mailbox so holds at most one output of each index and never more than a request's tokens, however slow its reader.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import replace

from trtspec.errors import DuplicateRequest, EngineLost, RequestError
from trtspec.executors.messages import Cancel, Command, Submit
from trtspec.types import EngineEvent, Failed, Finish, FinishReason, Request, RequestEvent, Started, StepOutput


class Mailbox:
    """Unread events of one request: its start, then its outputs, then its failure."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.started = False
        """The request takes part in passes."""
        self.ended = False
        """The engine is done with the request, so it needs no cancel."""
        self._start: Started | None = None
        self._outputs: dict[int, StepOutput] = {}
        """By output index, in the order in which each was first left unread."""
        self._failure: RequestError | None = None
        self._unfinished = set(range(request.n))
        self._reader: asyncio.Future[None] | None = None
        """Waits for the next event. A mailbox has one reader, so a future does what an `asyncio.Event` does slower."""

    def put(self, event: EngineEvent) -> None:
        if self.ended:
            return  # it was cancelled here, which the engine did not know yet
        match event:
            case Started():
                self.started = True
                self._start = event
            case StepOutput(output_index=index):
                unread = self._outputs.get(index)
                self._outputs[index] = unread.merge(event) if unread else event
                if event.finish is not None:
                    self._unfinished.discard(index)
            case Failed(error=error):
                self._failure = error
        self.ended = self._failure is not None or not self._unfinished
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def cancel(self) -> None:
        """End the outputs that live; what is unread of them stays, and nothing is added to it."""
        name, reason = self.request.request_id, Finish(FinishReason.CANCELLED)
        if not self.started:
            self.put(Started(name))
        for index in sorted(self._unfinished):
            self.put(StepOutput(name, index, (), (), reason))

    async def get(self) -> RequestEvent | None:
        """The next event; None after the last one. Raises the error that ended the request."""
        while not (self._start or self._outputs or self.ended):
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._start:
            start, self._start = self._start, None
            return start
        if self._outputs:
            return self._outputs.pop(next(iter(self._outputs)))
        if self._failure:
            raise self._failure
        return None


def named(event: RequestEvent, request_id: str) -> RequestEvent:
    """The event of a request that has another id elsewhere."""
    if isinstance(event, Started):
        return replace(event, request_id=request_id)
    # Not by `replace`, which takes twice as long: every event of every stream passes here.
    return StepOutput(
        request_id,
        event.output_index,
        event.token_ids,
        event.passes,
        event.finish,
        event.logprobs,
        event.prompt_logprobs,
    )


class RequestStreams:
    """All live requests of an executor.

    The engine knows a request under a key of its own, so that late events of a cancelled request never reach a new
    one that reuses its id.
    """

    def __init__(self) -> None:
        self._mailboxes: dict[str, Mailbox] = {}
        self._keys: dict[str, str] = {}
        """The key of each id that is in use."""
        self._serial = itertools.count()

    @property
    def live(self) -> int:
        """How many requests the engine has not ended."""
        return sum(not mailbox.ended for mailbox in self._mailboxes.values())

    @property
    def in_flight(self) -> list[Request]:
        """Requests that take part in passes; those that still wait cannot have done any harm."""
        return [mailbox.request for mailbox in self._mailboxes.values() if mailbox.started and not mailbox.ended]

    async def run(self, request: Request, send: Callable[[Command], None]) -> AsyncGenerator[RequestEvent, None]:
        """Submit a request and yield its events; leaving early cancels it."""
        if request.request_id in self._keys:
            raise DuplicateRequest(f"request_id {request.request_id!r} is in use by a live request")
        key = f"{request.request_id}#{next(self._serial)}"
        mailbox = self._mailboxes[key] = Mailbox(request)
        self._keys[request.request_id] = key
        try:
            send(Submit(replace(request, request_id=key)))
            while (event := await mailbox.get()) is not None:
                yield named(event, request.request_id)
        finally:
            del self._mailboxes[key]
            del self._keys[request.request_id]
            if not mailbox.ended:
                send(Cancel(key))

    def cancel(self, request_id: str, send: Callable[[Command], None]) -> bool:
        """End a request where it stands; its reader gets the ends of its outputs. False where none of that id lives."""
        key = self._keys.get(request_id)
        mailbox = self._mailboxes[key] if key else None
        if key is None or mailbox is None or mailbox.ended:
            return False
        mailbox.cancel()
        send(Cancel(key))
        return True

    def deliver(self, events: Iterable[EngineEvent]) -> None:
        """Put events in their mailboxes; those of cancelled requests have none any more."""
        for event in events:
            if mailbox := self._mailboxes.get(event.request_id):
                mailbox.put(event)

    def fail_all(self, reason: str) -> None:
        """End every live request with an `EngineLost` of its own."""
        for key, mailbox in self._mailboxes.items():
            if not mailbox.ended:
                mailbox.put(Failed(key, EngineLost(reason)))
