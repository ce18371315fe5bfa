"""Who lives: the requests of an engine, and which of their sequences wait, run, or are held back.

It knows nothing of blocks, passes and tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trtspec.decoding.prefix_index import BlockNames
from trtspec.decoding.queues import OrderedQueue
from trtspec.decoding.sequence import Sequence
from trtspec.errors import DuplicateRequest
from trtspec.types import Request

_PLAIN = "\0plain\0"
"""Before a tenant's name: no tenant that a service lets in begins so."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request some of whose outputs have not ended."""

    request: Request
    sequences: dict[int, Sequence]
    """Those that have not ended, by choice."""
    held: list[Sequence] = field(default_factory=list)
    """Choices that wait for the first one to compute the prompt, where they will find its blocks."""
    started: bool = False
    """`Started` was published."""
    asked_depth: int = 0
    """Deepest draft that it asks for; `request` may have less."""


class Roster:
    """Owns the queues. A sequence waits in order, runs, or is held back; `remove` takes it from wherever it is."""

    def __init__(self, block_tokens: int, prefix_sharing: bool, drafters_cache: bool = False) -> None:
        self.live: dict[str, LiveRequest] = {}
        self.waiting: OrderedQueue[Sequence] = OrderedQueue()
        self.running: dict[int, Sequence] = {}
        """By sequence id."""
        self.preemptions = 0
        self._block_tokens = block_tokens
        self._prefix_sharing = prefix_sharing
        self._drafters_cache = drafters_cache
        self._deadlines: OrderedQueue[LiveRequest] = OrderedQueue()
        self._arrivals = 0
        self._sequences = 0
        self._ended = 0

    @property
    def not_running(self) -> int:
        """Sequences that wait or are held back."""
        return self._sequences - self._ended - len(self.running)

    def add(self, request: Request) -> None:
        """Queue a request; raises `DuplicateRequest` while another with its id lives."""
        if request.request_id in self.live:
            raise DuplicateRequest(f"request_id {request.request_id!r} is in use by a live request")
        sequences = [self._sequence(request, choice) for choice in range(request.n)]
        shares = self._prefix_sharing and len(request.prompt) > self._block_tokens
        at_once = 1 if shares else request.n
        by_choice = {item.choice: item for item in sequences}
        live = LiveRequest(request, by_choice, sequences[at_once:], asked_depth=request.max_draft_tokens)
        self.live[request.request_id] = live
        if request.deadline is not None:
            self._deadlines.add(live, (request.deadline,))
        for sequence in sequences[:at_once]:
            self._wait(sequence)
        self._arrivals += 1

    def overdue(self, now: float) -> list[LiveRequest]:
        """Requests whose deadline has come; each is told once."""
        return self._deadlines.take_up_to((now,))

    def draft_to(self, live: LiveRequest, depth: int) -> None:
        """A request that has not started drafts so deep, as if it had never asked for another depth."""
        if live.request.max_draft_tokens == depth:
            return
        live.request = replace(live.request, max_draft_tokens=depth)
        for sequence in live.sequences.values():
            sequence.request = live.request
            sequence.names, sequence.readable = self._names(live.request)

    def start(self, sequence: Sequence) -> None:
        """A waiting sequence takes part in passes from now on."""
        self.waiting.remove(sequence)
        self.running[sequence.sequence_id] = sequence

    def preempt(self, sequence: Sequence) -> None:
        """A running sequence waits again, at its old place in order."""
        del self.running[sequence.sequence_id]
        self._wait(sequence)
        self.preemptions += 1

    def let_siblings_wait(self, sequence: Sequence) -> None:
        """The prompt is computed: choices that were held back for it may be admitted."""
        live = self.live[sequence.request.request_id]
        for sibling in live.held:
            self._wait(sibling)
        live.held.clear()

    def remove(self, sequence: Sequence) -> None:
        """A sequence ended; its request ends with the last one."""
        live = self.live[sequence.request.request_id]
        del live.sequences[sequence.choice]
        self._ended += 1
        self.running.pop(sequence.sequence_id, None)
        self.waiting.remove(sequence)
        if not live.sequences:
            self._deadlines.remove(live)
            del self.live[sequence.request.request_id]

    def _sequence(self, request: Request, choice: int) -> Sequence:
        names, readable = self._names(request)
        sequence = Sequence(self._sequences, request, self._arrivals, choice, list(request.prompt), names, readable)
        self._sequences += 1
        return sequence

    def _names(self, request: Request) -> tuple[BlockNames, tuple[BlockNames, ...]]:
        """Of a sequence's own blocks, and of others that serve it as well."""
        names = BlockNames(request.tenant, self._block_tokens)
        if not self._drafters_cache or request.drafts:
            return names, ()
        # Its blocks lack what a drafter reads; others' lack nothing.
        return BlockNames(_PLAIN + request.tenant, self._block_tokens), (names,)

    def _wait(self, sequence: Sequence) -> None:
        self.waiting.add(sequence, sequence.order)
