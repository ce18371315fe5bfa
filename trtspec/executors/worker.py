"""The child process of an engine: `python -m trtspec.executors.worker FD`, where FD is its end of a socket pair.

It lives and dies with its parent: when the channel closes it stops, whatever it was doing.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import NoReturn

from trtspec.errors import TrtspecError
from trtspec.executors.messages import Close, Command, Open, OpenFailed, Ready, Report, pack, receive
from trtspec.stop_signals import leave_to_others

ORPHAN_GRACE_SECONDS = 10.0
"""Time for the running pass to end after the parent went away."""


def main(channel: socket.socket) -> int:
    """Serve the parent on the other end until it closes."""
    leave_to_others()
    # Only now, because loading torch takes seconds, in which a Ctrl-C must not hit this process.
    from trtspec.executors.guides.opening import open_guided

    command = receive(channel)
    if not isinstance(command, Open):
        return 1
    inbox: SimpleQueue[Command] = SimpleQueue()
    threading.Thread(target=_read, args=(channel, inbox), name="trtspec-inbox", daemon=True).start()

    publishing = threading.Lock()  # what is wrong with a guide may be told from another thread than the engine's

    def publish(message: Ready | OpenFailed | Report) -> None:
        try:
            with publishing:
                channel.sendall(pack(message))
        except OSError:  # the parent is gone; so is everyone who would read this
            inbox.put(Close())

    try:
        opened = open_guided(command.directory, command.options)
    except TrtspecError as error:
        publish(OpenFailed(error))
        return _end_at_once()
    except Exception:
        traceback.print_exc()
        return _end_at_once()
    gc.freeze()  # an open engine lives as long as the process: collecting garbage need not look at it
    publish(Ready(opened.info, opened.stats()))
    try:
        opened.run(inbox, publish)
    except Exception as error:  # the engine cannot be trusted any more, not even to be taken down in order
        if isinstance(error, TrtspecError):
            print(f"the engine cannot go on: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        return _end_at_once()
    return 0


def _end_at_once() -> NoReturn:
    """Without what an orderly end would wait for: the GPU, or other ranks."""
    sys.stderr.flush()
    os._exit(1)


def _read(channel: socket.socket, inbox: SimpleQueue[Command]) -> None:
    """Pass commands on; without a parent, stop."""
    while isinstance(command := receive(channel), Command):
        inbox.put(command)
    inbox.put(Close())
    threading.Event().wait(ORPHAN_GRACE_SECONDS)
    os._exit(1)  # the engine hangs in native code that no exception reaches


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
