"""What a verification engine is built for: how large each dimension may be, and how wide a row of logits is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plugins.contract import LOGITS, Array
from plugins.sampling_specs import MOST_IDS
from plugins.verification_specs import MOST_NODES
from trtspec.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Range:
    """Sizes of one dimension; the engine is fastest with the usual one."""

    least: int
    usual: int
    most: int

    @property
    def fixed(self) -> bool:
        return self.least == self.most

    @property
    def size(self) -> int:
        """As networks declare it: -1 where it is only known when the engine runs."""
        return self.most if self.fixed else -1

    def plus(self, more: int) -> Range:
        return Range(self.least + more, self.usual + more, self.most + more)

    def __str__(self) -> str:
        return str(self.most) if self.fixed else f"{self.least}:{self.usual}:{self.most}"


def parse_range(text: str, flag: str) -> Range:
    """`LEAST:USUAL:MOST`, or one number for a size that never changes."""
    parts = text.split(":")
    if len(parts) not in (1, 3) or not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"{flag} is {text!r}; write LEAST:USUAL:MOST, such as 1:8:64, or one number")
    least, usual, most = map(int, parts * 3 if len(parts) == 1 else parts)
    if not 1 <= least <= usual <= most:
        raise ConfigError(
            f"{flag} is {text}; sizes go up, from 1 on. A batch that drafts nothing has one node a row, and counts of 0"
        )
    return Range(least, usual, most)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine takes. Its networks have B rows of N nodes and N + 1 places."""

    rows: Range
    nodes: Range
    width: Range
    """Columns of logits."""
    vocabulary: int
    """How many of the columns are tokens; the others are padding."""
    logits: str
    """Their type."""

    def __post_init__(self) -> None:
        if self.nodes.most > MOST_NODES:
            raise ConfigError(f"--nodes is {self.nodes}; at most {MOST_NODES} nodes a row can be verified")
        if not 1 <= self.vocabulary <= MOST_IDS:
            raise ConfigError(f"--vocabulary is {self.vocabulary}; from 1 to {MOST_IDS} tokens are possible")
        if self.width.least < self.vocabulary:
            raise ConfigError(
                f"--width is {self.width} and --vocabulary {self.vocabulary}; rows of logits cannot be narrower than "
                "the vocabulary"
            )

    @property
    def dimensions(self) -> Mapping[str, Range]:
        """By the names that arrays use."""
        return {"rows": self.rows, "nodes": self.nodes, "places": self.nodes.plus(1), "width": self.width}

    def ranges(self, array: Array) -> tuple[Range, ...]:
        """Of each of its dimensions."""
        named = self.dimensions
        return tuple(Range(size, size, size) if isinstance(size, int) else named[size] for size in array.shape)

    def dtype(self, array: Array) -> str:
        return self.logits if array.dtype == LOGITS else array.dtype
