"""The process that tries guides before the engine does: `python -m trtspec.executors.guides.rehearsal FD`.

The library that compiles guides is native code which no time limit reaches, and hostile texts make it run for ever, or
die. Here the system ends what takes too much CPU time or memory, and nobody's text is in this process but the guide's.
"""

from __future__ import annotations

import random
import resource
import signal
import socket
import sys
import time
from pathlib import Path

from trtspec.errors import InvalidField
from trtspec.executors.guides.grammars import MASK_SECONDS, CompiledGuide, Grammars
from trtspec.executors.guides.tokens import token_info
from trtspec.executors.guides.trials import CPU_SECONDS, MEMORY_BYTES, MOST_GRAMMAR_BYTES, Begin, Tried, too_costly
from trtspec.executors.messages import pack, receive
from trtspec.guides import Guide
from trtspec.stop_signals import leave_to_others

_TRIAL_TOKENS = 64


def rehearse(guide: Guide, grammars: Grammars) -> Tried:
    """Compile a guide, and follow a text that it allows."""
    try:
        compiled = grammars.compile(guide)
        if compiled.size > MOST_GRAMMAR_BYTES:
            raise too_costly(guide, f"{compiled.size} bytes once it is compiled")
        _follow(compiled)
    except InvalidField as error:
        return Tried(error)
    except MemoryError:
        return Tried(too_costly(guide, "more memory than there is for it"))
    return Tried()


def _follow(guide: CompiledGuide) -> None:
    """Take tokens at random. A guide that allows no text, or whose masks are slow, is refused."""
    matcher, draws, worst = guide.matcher(), random.Random(0), 0.0
    for count in range(_TRIAL_TOKENS):
        begun = time.thread_time()
        allowed = matcher.allowed().nonzero()[0].tolist()
        worst = max(worst, time.thread_time() - begun)
        going_on = [token for token in allowed if token not in matcher.end_ids]
        if not going_on and count == 0:
            raise InvalidField(guide.field, "allowing no text", "a guide that some text of this model conforms to")
        if not going_on or not matcher.accept(draws.choice(going_on)):
            break
    if worst > MASK_SECONDS:
        raise too_costly(guide, f"{worst:.2f} s to find which token may follow")


def main(channel: socket.socket) -> int:
    """Try guides until the engine's process is gone."""
    leave_to_others()
    begin = receive(channel)
    if not isinstance(begin, Begin):
        return 1
    grammars = Grammars(token_info(begin.engine, begin.vocabulary))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY_BYTES,) * 2)
    channel.sendall(pack(Tried()))
    while isinstance(guide := receive(channel), Guide):
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process, native code or not
        tried = rehearse(guide, grammars)
        signal.setitimer(signal.ITIMER_PROF, 0)
        channel.sendall(pack(tried))
    return 0


def _address_space() -> int:
    """Bytes of it that are in use."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
