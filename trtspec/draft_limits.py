"""When and how deep may be drafted as requests come and go: settings of TensorRT-LLM's PyTorch flow.

They are run-time options of an engine. Which flow follows them is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

Schedule = tuple[tuple[int, int], ...]
"""From how many requests on, and how deep; in that order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLimits:
    """Off where a value is its default."""

    max_concurrency: int | None = None
    """While more requests run than this, nothing is drafted; None: however many."""
    draft_len_schedule: Schedule = ()
    """From how many running requests on drafts are how deep; 0 drafts nothing."""
    acceptance_window: int = 0
    """The gate: completed requests whose accepted lengths are averaged; 0 has no gate."""
    acceptance_length_threshold: float = 0.0
    """The gate: mean accepted length (the target's own token not counted) below which nothing is drafted any more, as
    long as the process lives."""

    @property
    def limits(self) -> dict[str, Any]:
        """Those that are on, by key."""
        found = {key: getattr(self, key) for key, off in OFF.items() if getattr(self, key) != off}
        return found | ({"draft_len_schedule": dict(self.draft_len_schedule)} if self.draft_len_schedule else {})

    def depth_at(self, requests: int, deepest: int) -> int:
        """How deep may be drafted while so many requests run and the gate is open."""
        if self.max_concurrency is not None and requests > self.max_concurrency:
            return 0
        lengths = [length for least, length in self.draft_len_schedule if least <= requests]
        return lengths[-1] if lengths else deepest

    def wrong_limits(self, deepest: int) -> Iterator[str]:
        """What TensorRT-LLM would refuse, or ignore."""
        if self.max_concurrency is not None and self.max_concurrency < 1:
            yield (
                f"max_concurrency is {self.max_concurrency}; allowed is 1 or more, or null for no limit; method none "
                "drafts nothing"
            )
        yield from _wrong_schedule(self.draft_len_schedule, deepest)
        window, threshold = self.acceptance_window, self.acceptance_length_threshold
        if window < 0:
            yield f"acceptance_window is {window}; allowed is 0 or more"
        if not 0 <= threshold <= deepest:
            yield (
                f"acceptance_length_threshold is {threshold}; allowed is 0 to num_speculative_tokens, which is "
                f"{deepest}"
            )
        if (window > 0) != (threshold > 0):
            yield (
                f"acceptance_window is {window} and acceptance_length_threshold is {threshold}; one does nothing "
                "without the other: give both, or 0 for both"
            )


OFF: Mapping[str, Any] = {item.name: item.default for item in fields(DraftLimits)}
"""Each limit, with the value that does not limit."""
GATE = ("acceptance_window", "acceptance_length_threshold")


def read_schedule(item: object) -> Schedule | None:
    """A schedule from its JSON object, whose keys are whole numbers as texts; None where it is something else."""
    if isinstance(item, tuple):  # it was read before
        return item
    if not isinstance(item, Mapping):
        return None
    pairs = tuple((_number(key), length) for key, length in item.items())
    if any(not isinstance(number, int) or isinstance(number, bool) for pair in pairs for number in pair):
        return None
    return tuple(sorted(pairs))


def schedule_facts(schedule: Schedule) -> dict[str, int]:
    """The JSON object of a schedule."""
    return {str(least): length for least, length in schedule}


def _number(key: object) -> Any:
    """The whole number of a text that is written as numbers are, so that no two keys are the same one."""
    try:
        return int(key) if isinstance(key, str) and key == str(int(key)) else key
    except ValueError:
        return key


def _wrong_schedule(schedule: Schedule, deepest: int) -> Iterator[str]:
    lengths = dict(schedule)
    for requests, length in schedule:
        if requests < 1:
            yield f"draft_len_schedule names {requests} requests; allowed is 1 or more"
        if not 0 <= length <= deepest:
            yield (
                f"draft_len_schedule has {length} tokens from {requests} requests on; allowed is 0 to "
                f"num_speculative_tokens, which is {deepest}"
            )
    if schedule and lengths.get(1) != deepest:
        begins = f"has {lengths[1]} tokens" if 1 in lengths else "says nothing"
        yield (
            f"draft_len_schedule {begins} for 1 request and num_speculative_tokens is {deepest}; make them equal, as "
            f'in {{"1": {deepest}, "8": 0}}'
        )
