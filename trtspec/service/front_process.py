"""The process of a front-end: `python -m trtspec.service.front_process FD`, where FD is its end of a socket pair.

It is a server as any other, over an executor that lives in the main process. It ends when the main process does.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import TYPE_CHECKING

from trtspec.errors import TrtspecError
from trtspec.executors.hub_messages import Answering
from trtspec.executors.messages import OpenFailed, receive
from trtspec.stop_signals import leave_to_others

if TYPE_CHECKING:
    from trtspec.service.front_end import Order


def main(end: socket.socket) -> int:
    """Serve as ordered until the main process says stop or is gone; 1 if that was no orderly end."""
    leave_to_others()
    # Only now, because loading them takes a second, in which a Ctrl-C must not hit this process.
    from trtspec.service.front_end import Order

    order = receive(end)
    if not isinstance(order, Order):
        return 1
    logging.basicConfig(
        level=logging.WARNING, format=f"%(asctime)s %(levelname)s front-end {order.number}: %(message)s"
    )
    return asyncio.run(serve(end, order))


async def serve(end: socket.socket, order: Order) -> int:
    """Serve over the channel's executor; what makes that impossible is told to the main process."""
    from trtspec.executors.channel import Channel
    from trtspec.executors.remote import RemoteExecutor
    from trtspec.service.operating import as_it_is
    from trtspec.service.server import serve_until
    from trtspec.service.signals import FROM_MAIN_PROCESS, StopSignals

    channel = await Channel.over(end)
    signals = StopSignals()
    try:
        with signals.handled(FROM_MAIN_PROCESS):
            orderly = await serve_until(
                signals,
                order.directory,
                order.options,
                lambda: RemoteExecutor.join(channel),
                lambda *_: channel.send(Answering()),
                as_it_is,
            )
            return 0 if orderly else 1
    except TrtspecError as error:
        channel.send(OpenFailed(error))
        return 1
    finally:
        await channel.close()


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
