"""Which blocks of a prompt an earlier request left behind. Only counted: our engine computes all of them again."""

from __future__ import annotations

from collections.abc import Sequence

Key = tuple[object, tuple[int, ...]]


class Reuse:
    """Full blocks by salt and by everything before their end. Used from one thread."""

    def __init__(self, block_tokens: int, *, enabled: bool) -> None:
        self.block_tokens = block_tokens
        self.reused = self.missed = self.allocated = 0
        """Blocks, in all."""
        self._enabled = enabled
        self._stored: set[Key] = set()

    def find(self, prompt: Sequence[int], salt: object) -> int:
        """How many blocks of a prompt are there; its last token is always computed."""
        usable = (len(prompt) - 1) // self.block_tokens
        keys = self._keys(prompt[: usable * self.block_tokens], salt)
        found = next((count for count, key in enumerate(keys) if key not in self._stored), usable)
        found = found if self._enabled else 0
        self.reused += found
        self.missed += usable - found
        self.allocated += -(-len(prompt) // self.block_tokens)
        return found

    def store(self, tokens: Sequence[int], salt: object) -> None:
        """Keep the full blocks of a text."""
        if self._enabled:
            self._stored.update(self._keys(tokens, salt))

    def _keys(self, tokens: Sequence[int], salt: object) -> list[Key]:
        size = self.block_tokens
        return [(salt, tuple(tokens[: (index + 1) * size])) for index in range(len(tokens) // size)]
