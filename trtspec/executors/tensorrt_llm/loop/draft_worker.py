"""The child process of a draft engine: `python -m trtspec.executors.tensorrt_llm.loop.draft_worker FD`.

FD is its end of a socket pair. It lives and dies with the worker that started it: when the channel closes it stops,
whatever it was doing.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from datetime import timedelta
from typing import Any

from trtspec.errors import TrtspecError
from trtspec.executors.messages import Close, OpenFailed, pack, receive
from trtspec.executors.tensorrt_llm.failures import is_forward_failure
from trtspec.executors.tensorrt_llm.loop.draft_engine import (
    CancelDraft,
    DraftAnswer,
    DraftAnswers,
    DraftReady,
    Enqueue,
    OpenDraft,
    Reason,
)
from trtspec.stop_signals import leave_to_others

_POLL = timedelta(seconds=1)


class DraftWorker:
    """An executor, and the ids of its requests on both sides."""

    def __init__(self, channel: socket.socket, executor: Any, logits_size: int) -> None:
        self._channel = channel
        self._executor = executor
        self._logits_size = logits_size
        self._lock = threading.Lock()
        self._closing = False
        self._theirs: dict[int, int] = {}
        """The parent's id of each of the executor's."""

    def run(self) -> None:
        """Obey until the parent closes; raises nothing that it could mend."""
        threading.Thread(target=self._answer, name="trtspec-draft-responses", daemon=True).start()
        while isinstance(message := receive(self._channel), Enqueue | CancelDraft):
            if isinstance(message, Enqueue):
                self._enqueue(message)
            else:
                self._cancel(message.request_id)
        if not isinstance(message, Close):
            os._exit(1)  # the worker died, and a step that is under way need not end
        with self._lock:
            left = list(self._theirs)
        for id_ in left:
            self._executor.cancel_request(id_)
        self._closing = True
        self._executor.shutdown()

    def _enqueue(self, message: Enqueue) -> None:
        from trtspec.executors.tensorrt_llm import bindings

        with self._lock:  # a response must not overtake its id
            try:
                asked = [bindings.make_request(arguments, self._logits_size) for arguments in message.asked.values()]
                ids = self._executor.enqueue_requests(asked)
            except (RuntimeError, TypeError):
                self._tell(tuple(map(_nothing, message.asked)))
                return
            self._theirs |= dict(zip(ids, message.asked, strict=True))

    def _cancel(self, request_id: int) -> None:
        with self._lock:
            found = [mine for mine, theirs in self._theirs.items() if theirs == request_id]
        for id_ in found:
            self._executor.cancel_request(id_)

    def _answer(self) -> None:
        """The waiting thread. Without it nothing is answered: the process ends with it."""
        try:
            while True:
                if responses := self._executor.await_responses(timeout=_POLL):
                    with self._lock:
                        answers = tuple(filter(None, map(self._answer_of, responses)))
                        self._tell(answers)
        except BaseException as error:
            if not self._closing:
                print(f"the draft engine cannot go on: {error}", file=sys.stderr, flush=True)
                os._exit(1)

    def _answer_of(self, response: Any) -> DraftAnswer | None:
        """None for one that is not the last."""
        id_ = self._theirs.get(response.request_id)
        if id_ is None or not (response.has_error() or response.result.is_final):
            return None
        del self._theirs[response.request_id]
        if response.has_error():
            failed = is_forward_failure(response.error_msg)
            return DraftAnswer(id_, error_msg=response.error_msg) if failed else _nothing(id_)
        result = response.result
        return DraftAnswer(id_, (tuple(result.output_token_ids[0]),), (Reason(result.finish_reasons[0].name),))

    def _tell(self, answers: tuple[DraftAnswer, ...]) -> None:
        self._channel.sendall(pack(DraftAnswers(answers)))


def _nothing(id_: int) -> DraftAnswer:
    """No draft: the text of a request that the draft engine refuses goes on without."""
    return DraftAnswer(id_, finish_reasons=(Reason("NOT_FINISHED"),))


def _watch(channel: socket.socket) -> None:
    """While the engine opens: without a parent, stop."""
    if not channel.recv(1, socket.MSG_PEEK):
        os._exit(1)


def main(channel: socket.socket) -> int:
    """Open the engine, and serve the parent on the other end until it closes."""
    leave_to_others()
    first = receive(channel)
    if not isinstance(first, OpenDraft):
        return 1
    from trtspec.executors.tensorrt_llm.compiled_opening import open_warm

    threading.Thread(target=_watch, args=(channel,), name="trtspec-draft-parent", daemon=True).start()
    try:
        executor, _ = open_warm(first.directory, first.arguments, first.logits_size)
    except TrtspecError as error:
        channel.sendall(pack(OpenFailed(error)))
        return 1
    channel.sendall(pack(DraftReady()))
    DraftWorker(channel, executor, first.logits_size).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
