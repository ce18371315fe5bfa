"""Speculation of a request under a limit that was set while the server runs: what is applied, and what is refused."""

from __future__ import annotations

from dataclasses import replace

from trtspec.errors import SpeculationRefused
from trtspec.service.requests import AppliedSpeculation
from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import Method


def check_required(asked: AppliedSpeculation, limit: SpeculationLimit) -> None:
    """Refuse a request that insists on speculation while it is off, before it waits for its turn."""
    under_limit(asked, limit.cap(asked.max_draft_tokens), limit.by)


def under_limit(asked: AppliedSpeculation, depth: int | None, by: str) -> AppliedSpeculation:
    """Speculation of a request whose drafts are at most so deep; None where nothing bounds them.

    Raises `SpeculationRefused` where it insists on drafts and gets none.
    """
    if depth is None or depth >= asked.max_draft_tokens:
        return asked
    if depth:
        return replace(asked, max_draft_tokens=depth, reason=f"{by} allows at most {depth} draft tokens")
    if asked.required:
        field = "speculation.mode"
        message = f"{field} is ON, but speculation was switched off by {by}; ask for DEFAULT or OFF, or try again later"
        raise SpeculationRefused(message, field=field)
    return AppliedSpeculation(Method.NONE, 0, f"switched off by {by}")
