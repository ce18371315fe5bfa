"""Which drafter a build takes: the one asked for, the target's own, or the one that is stored for the demo model."""

from __future__ import annotations

from pathlib import Path

from builders.checkpoint import open_checkpoint
from builders.drafts import native
from builders.drafts.checks import check_method
from builders.drafts.formats import open_draft
from builders.drafts.mtp import open_mtp
from builders.drafts.source import OpenedDraft
from builders.methods import METHODS
from trtspec.errors import ConfigError
from trtspec.types import Method

DEMO = Path(__file__).parent.parent / "demo"
"""Drafters for the demo model, a folder for each method."""


def choose_draft(method: str, asked: Path | None, target: Path | None) -> OpenedDraft:
    """Open the drafter of a method that needs one; without a target it is for the demo model."""
    train = f"train one with `python -m builders.train --method {method}`"
    if asked is not None:
        found = open_draft(asked.expanduser().resolve())
        check_method(found, Method(method))
        return found
    if target is None:
        if native.holds(DEMO / method):
            return native.open_native(DEMO / method)
        raise ConfigError(f"--method {method}: no drafter of the demo model is stored; give --draft DIR, or {train}")
    if METHODS[method].in_target:
        return open_mtp(open_checkpoint(target))
    raise ConfigError(f"--method {method} needs a drafter for {target}: give --draft DIR, or {train} --target {target}")
