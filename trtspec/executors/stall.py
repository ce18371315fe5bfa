"""Notices that an engine with work to do says nothing any more: its process stands still, or a pass does not end.

An engine that works reports every pass, those of a long prompt's chunks included, so a slow one is heard of. One that
has nothing to do is silent and well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LOOKS = 20
"""How often to look within the bound."""
_LONGEST_SECONDS = 1.0


class StallWatch:
    """Counts silence while there is work."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._signs = 0

    def sign(self) -> None:
        """The engine said something."""
        self._signs += 1

    async def stalled(self, has_work: Callable[[], bool]) -> None:
        """Return when the engine has been silent for too long over its work.

        Silence is counted look by look and not by a clock, so that a time in which this process stood still itself,
        its engine with it, is no silence of the engine.
        """
        pause = min(self.seconds / _LOOKS, _LONGEST_SECONDS)
        silence, heard = 0.0, self._signs
        while silence < self.seconds:
            await asyncio.sleep(pause)
            if has_work() and self._signs == heard:
                silence += pause
            else:
                silence, heard = 0.0, self._signs
