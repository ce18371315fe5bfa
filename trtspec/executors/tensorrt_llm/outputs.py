"""What the loop over TensorRT-LLM's executors knows of an output: what it asks next, what it makes of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import Request, StepOutput


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to an engine, as plain values."""

    engine: str
    """The engine's name in its folder."""
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class Live:
    """One of our requests, and what has become of its outputs."""

    request: Request
    unfinished: int
    plain: bool = False
    """It began while speculation was off."""
    started: bool = False

    def lowered(self, limit: SpeculationLimit) -> int | None:
        """How deep its drafts are, where that is less than it asks for."""
        asked = self.request.max_draft_tokens
        depth = 0 if self.plain else limit.cap(asked)
        return depth if depth < asked else None

    def cached_tokens(self, result: Any | None, tokens_per_block: int) -> int | None:
        """In blocks, of which the last one may have been found in part; a prompt's last token never is."""
        metrics = None if result is None else result.request_perf_metrics
        if metrics is None:
            return None
        found: int = metrics.kv_cache_metrics.num_reused_blocks * tokens_per_block
        return min(found, len(self.request.prompt) - 1)


class Output(Protocol):
    """One output of a request. It asks once, or, in rounds, again after each last result until it has ended."""

    request: Request
    ended: bool

    def ask(self, now: float) -> Ask:
        """What to enqueue next. Raises a `RequestError` where it cannot go on."""
        ...

    def take(self, result: Any, pass_index: int) -> StepOutput | None:
        """The step of a result; None for one that tells nothing."""
        ...

    def late(self, now: float) -> StepOutput | None:
        """The end of an output whose time is over between two rounds; asked before it asks again."""
        ...

    def disagreement(self, result: Any) -> str | None:
        """What the runtime counted itself, where it contradicts what was derived; asked of each last result."""
        ...

    def close(self) -> None:
        """It ended, or nobody waits for it: called once, after its last result."""
        ...
