"""What an output must conform to, in words of no engine and no library.

The text is the client's own. Whether it makes sense is found out where it is compiled, beside the engine.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

MAX_GUIDE_BYTES = 64 << 10
"""Of a guide's text in UTF-8: schemas of large interfaces take about half of it."""


class GuideKind(enum.Enum):
    """Values are the fields of `GuidedDecoding`."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Guide:
    """A language that the whole output is in."""

    kind: GuideKind
    text: str = ""
    """A schema, an expression, a tag; of a choice the grammar of its options; nothing for any JSON."""

    @property
    def field(self) -> str:
        """Where it stands in a request."""
        return f"guided_decoding.{self.kind.value}"
