"""An engine's process in which a pass never returns, once: `python -m tests.executors.hanging_worker FD`.

It is the real one but for that. A file, named by a variable, remembers that it happened.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

from trtspec.decoding.engine import Engine
from trtspec.decoding.plan import StepPlan
from trtspec.executors.worker import main
from trtspec.types import EngineEvent

MARK = "TEST_HANGING_WORKER"
HANGS_AT = 7
"""A token of a prompt that makes the pass hang that reads it."""


def plant() -> None:
    mark, finish = Path(os.environ[MARK]), Engine.finish

    def hanging(engine: Engine, plan: StepPlan) -> tuple[EngineEvent, ...]:
        if any(HANGS_AT in row.request.prompt for row in plan.rows) and not mark.exists():
            mark.touch()
            threading.Event().wait()
        return finish(engine, plan)

    Engine.finish = hanging  # type: ignore[method-assign]


if __name__ == "__main__":
    plant()
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
