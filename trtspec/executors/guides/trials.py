"""What the engine's process and the one that tries guides say to each other, and what a guide may cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import InvalidField
from trtspec.guides import Guide

CPU_SECONDS = 5.0
"""For a guide, from its text to the end of its trial. Schemas of large interfaces take a tenth of a second."""
MEMORY_BYTES = 1 << 30
"""Above what the process takes before its first guide."""
MOST_GRAMMAR_BYTES = 32 << 20
"""Of a compiled guide."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message: for which engine."""

    engine: Path
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a guide; of the first message, that the process is ready."""

    error: InvalidField | None = None


def too_costly(guide: Guide, what: str) -> InvalidField:
    return InvalidField(
        guide.field,
        f"too complex: it takes {what}",
        "a guide with fewer rules, smaller counts of repetition, or less nesting",
    )
