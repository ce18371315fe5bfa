"""The limit of an engine's drafts, as an executor on an event loop knows it: asked for here, in force where the engine
reports it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trtspec.capabilities import Support, capabilities
from trtspec.errors import EngineLost, InvalidField, SpeculationRefused
from trtspec.executors.messages import Limit
from trtspec.speculation_limit import NO_LIMIT, SpeculationLimit
from trtspec.types import EngineInfo


def check_limit(limit: SpeculationLimit, info: EngineInfo) -> None:
    """Refuse a limit that the engine cannot keep to while it runs, with the reason that requests get, too."""
    most = info.limits.max_draft_tokens
    if limit.max_depth is None:
        return
    if not most:
        raise SpeculationRefused("this engine drafts nothing, so there is nothing to limit")
    if not 0 <= limit.max_depth <= most:
        raise InvalidField("max_draft_tokens", limit.max_depth, f"0 to {most}")
    feature = "speculation_off" if limit.off else "max_draft_tokens"
    found = capabilities(info.method, info.flow, info.acceptance)[feature]
    if found.support is Support.REFUSED:
        raise SpeculationRefused(f"speculation cannot be limited while this engine runs: {found.reason}")


class LimitControl:
    """Sends limits to one engine and waits until they are in force."""

    def __init__(self, info: EngineInfo, in_force: SpeculationLimit = NO_LIMIT) -> None:
        self.in_force = in_force
        self.kept = in_force
        """What an engine that takes this one's place has to keep to."""
        self._info = info
        self._changed = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    async def impose(
        self, limit: SpeculationLimit, send: Callable[[Limit], None], lost: Callable[[], Awaitable[object]]
    ) -> SpeculationLimit:
        """Return once the engine keeps to the limit. `lost` waits until it is gone; then this raises `EngineLost`."""
        check_limit(limit, self._info)
        async with self._one_at_a_time:
            send(Limit(limit))
            ends = [asyncio.ensure_future(self._reported(limit)), asyncio.ensure_future(lost())]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
            if self.in_force != limit:
                raise EngineLost("the engine was lost before the limit was in force; try again")
            self.kept = limit
            return limit

    def report(self, limit: SpeculationLimit) -> None:
        """The engine keeps to this limit."""
        if limit != self.in_force:
            self.in_force = limit
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def wait_for_change(self, limit: SpeculationLimit) -> SpeculationLimit:
        """Return the limit in force as soon as it differs from `limit`."""
        while self.in_force == limit:
            await self._changed.wait()
        return self.in_force

    async def _reported(self, limit: SpeculationLimit) -> None:
        while self.in_force != limit:
            await self._changed.wait()
