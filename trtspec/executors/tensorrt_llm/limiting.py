"""The limit of drafts that the loop over executors and what it makes share; the thread that owns the engine sets it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtspec.speculation_limit import NO_LIMIT, SpeculationLimit
from trtspec.types import Request


@dataclass(slots=True)
class Limiter:
    """Holds the limit in force. Rounds ask it before each draft."""

    limit: SpeculationLimit = NO_LIMIT

    def begun(self, request: Request) -> Request:
        """The request as it begins: while speculation is off it is plain, and stays so to its end."""
        return replace(request, max_draft_tokens=0) if self.limit.off else request
