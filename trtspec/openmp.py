"""How PyTorch's CPU threads wait for each other.

GNU OpenMP lets a thread that waits spin for milliseconds by default. That is right where every thread has a core of
its own. Where another process wants the cores too, as the service, a client or a build do, the spinning steals the
time that the awaited thread needs: on two shared cores a pass took seven times as long. A short spin costs an idle
machine next to nothing. Must be decided before torch is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

SPIN = "GOMP_SPINCOUNT"
_SHORT = "10000"
_DECIDED_BY = (SPIN, "OMP_WAIT_POLICY")


def considerate(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with a short spin, unless it says how to wait already."""
    if any(name in environment for name in _DECIDED_BY):
        return dict(environment)
    return {**environment, SPIN: _SHORT}


def be_considerate() -> None:
    """Apply it to this process, for whatever it loads from now on."""
    os.environ.update(considerate(os.environ))
