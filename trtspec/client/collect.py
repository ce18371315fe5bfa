"""A stream's events to one whole answer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import grpc

from trtspec.client.events import Accepted, Chunk, Completion, Event, Finished, Output, RequestFailed


class Collector:
    """Keeps the chunks of each output until the request has ended."""

    def __init__(self) -> None:
        self._accepted: Accepted | None = None
        self._finished: Finished | None = None
        self._chunks: defaultdict[int, list[Chunk]] = defaultdict(list)

    def take(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case Accepted():
                self._accepted = event
            case Chunk():
                self._chunks[event.output_index].append(event)
            case Finished():
                self._finished = event

    def completion(self) -> Completion:
        """The whole answer, at the end of the stream."""
        if self._accepted is None or self._finished is None:
            raise RequestFailed(grpc.StatusCode.INTERNAL, "the stream ended without its last message")
        outputs = tuple(self._whole(output) for output in self._finished.outputs)
        return Completion(outputs, self._accepted, self._finished)

    def _whole(self, output: Output) -> Output:
        """The output with what its chunks had, unless the server has repeated all of it."""
        if output.text is not None:
            return output
        chunks = self._chunks[output.index]
        return replace(
            output,
            text="".join(chunk.text for chunk in chunks),
            token_ids=tuple(id_ for chunk in chunks for id_ in chunk.token_ids),
            logprobs=tuple(item for chunk in chunks for item in chunk.logprobs),
        )
