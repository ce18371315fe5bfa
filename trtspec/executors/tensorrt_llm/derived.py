"""Records of passes, worked out from how many tokens each answer of TensorRT-LLM brings.

An answer of a speculative engine carries the tokens of one step: what it accepted and one of the target's own. The
first one ends the prompt. `decoding_iter` counts steps, so that answers which were merged on their way are seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.types import PassRecord


@dataclass(slots=True)
class Derived:
    """The passes of one output so far."""

    nodes_by_depth: tuple[int, ...]
    """Of every draft of the engine; empty without speculation."""
    steps: int = 0
    """`decoding_iter` of the last answer."""
    emitted: int = 0
    accepted: int = 0

    def records(self, count: int, steps: int, index: int, *, cut: bool) -> tuple[PassRecord, ...]:
        """A record for each step behind `count` tokens, the prompt's first; merged steps share them evenly."""
        began, self.steps = self.steps, max(steps, self.steps)
        if not count:
            return ()
        prompt = [PassRecord(index, prefill=True, cut=cut and count == 1)] if not self.emitted else []
        self.emitted += count
        count -= len(prompt)
        least = -(-count // (1 + len(self.nodes_by_depth)))
        merged = min(max(steps - began - len(prompt), least), count)
        records = [self._record(index, len(range(part, count, merged))) for part in range(merged)]
        if cut and records:
            records[-1] = records[-1].cut_to(records[-1].emitted)
        self.accepted += sum(record.accepted for record in records)
        return (*prompt, *records)

    def _record(self, index: int, emitted: int) -> PassRecord:
        return PassRecord(index, self.nodes_by_depth, accepted=emitted - 1, emitted=emitted)
