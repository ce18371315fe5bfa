"""A runner that keeps what it computes: the features of an answer come for free while it is generated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from trtspec.decoding.draft import Draft
from trtspec.decoding.plan import Pass, Runner, StepPlan, TargetOutput


class Recorder:
    """Implements `Runner` over one whose passes give features, for requests of one output."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._parts: dict[str, list[tuple[int, Tensor]]] = {}
        """By request: position of the first row, and rows."""
        self._paused = False

    def forward(self, plan: Pass, draft: Draft) -> TargetOutput:
        assert isinstance(plan, StepPlan), "an engine runs it"
        output = self._runner.forward(plan, draft)
        if self._paused:
            return output
        assert output.features is not None, "the runner was created for features"
        rows = output.features.to(torch.bfloat16).cpu()
        begin = 0
        for row, nodes in zip(plan.rows, draft.counts.tolist(), strict=True):
            parts = self._parts.setdefault(row.request.request_id, [])
            while parts and parts[-1][0] >= row.start:  # computed again after a preemption
                parts.pop()
            parts.append((row.start, rows[begin : begin + row.fed]))
            begin += row.fed + nodes
        return output

    def take(self, request_id: str) -> Tensor:
        """[count, F] bfloat16 of a request that ended: of all its tokens but the last, which no pass has read."""
        return torch.cat([rows for _, rows in self._parts.pop(request_id)])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep nothing of what is computed meanwhile; all requests begin and end within."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
