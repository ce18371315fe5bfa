"""Passes written down by hand, for what happens between a forward pass and its commit."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.decoding.plan import PlanRow, StepPlan
from trtspec.types import Request


def decode_row(request: Request, output: Sequence[int] = (), *, sequence_id: int = 0) -> PlanRow:
    """Feeds the last known token, and chooses after it."""
    history = [*request.prompt, *output]
    return PlanRow(
        sequence_id=sequence_id,
        request=request,
        history=history,
        start=len(history) - 1,
        fed=1,
        samples=True,
        prefill=not output,
        max_depth=64,
        max_nodes=64,
        blocks=(),
        choice=0,
        scored=1,
    )


def chunk_row(request: Request, start: int, fed: int, *, sequence_id: int = 0) -> PlanRow:
    """Feeds a part of the prompt, all of it scored; samples where it is the last part."""
    samples = start + fed == len(request.prompt)
    return PlanRow(
        sequence_id=sequence_id,
        request=request,
        history=list(request.prompt),
        start=start,
        fed=fed,
        samples=samples,
        prefill=True,
        max_depth=0,
        max_nodes=0,
        blocks=(),
        choice=0,
        scored=fed,
    )


def plan_of(*rows: PlanRow, released: tuple[int, ...] = ()) -> StepPlan:
    return StepPlan(0, rows, (), released)
