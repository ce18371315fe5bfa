"""Which blocks of a prompt an earlier request left behind. Only counted: our engine computes all of them again."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix

Key = tuple[object, tuple[int, ...]]


class Reuse:
    """Full blocks by salt and by everything before their end; texts too where blocks may match in part."""

    def __init__(self, block_tokens: int, *, enabled: bool, partial: bool) -> None:
        self.block_tokens = block_tokens
        self.reused = self.missed = self.allocated = 0
        """Blocks, in all."""
        self._enabled, self._partial = enabled, partial
        self._stored: set[Key] = set()
        self._texts: set[Key] = set()

    def find(self, prompt: Sequence[int], salt: object) -> tuple[int, int]:
        """How many blocks of a prompt are there, and tokens of them; its last token is always computed."""
        usable = (len(prompt) - 1) // self.block_tokens
        keys = self._keys(prompt[: usable * self.block_tokens], salt)
        found = next((count for count, key in enumerate(keys) if key not in self._stored), usable)
        found = found if self._enabled else 0
        tokens = found * self.block_tokens
        more = self._more(prompt[:-1], tokens, salt)
        self.reused += found + bool(more)
        self.missed += usable - found
        self.allocated += -(-len(prompt) // self.block_tokens)
        return found + bool(more), tokens + more

    def store(self, tokens: Sequence[int], salt: object) -> None:
        """Keep the blocks of a text."""
        if self._enabled:
            self._stored.update(self._keys(tokens, salt))
            self._texts.add((salt, tuple(tokens)))

    def _more(self, prompt: Sequence[int], begin: int, salt: object) -> int:
        """Tokens of the block that begins there which were found: what is left of a text that is kept, in any case.

        `findMatchingBlock` of kvCacheManager.cpp looks for the very key first, and for parts of others if it may.
        """
        if self._enabled and len(prompt) > begin and (salt, tuple(prompt)) in self._texts:
            return len(prompt) - begin
        return self._shared(prompt, begin, salt)

    def _shared(self, prompt: Sequence[int], begin: int, salt: object) -> int:
        """Tokens of the block that begins there which another text has too, after the same beginning."""
        if not (self._enabled and self._partial):
            return 0
        wanted, most = tuple(prompt[: begin + self.block_tokens]), 0
        for key, text in self._texts:
            if key == salt:
                most = max(most, len(commonprefix([text, wanted])) - begin)
        return most

    def _keys(self, tokens: Sequence[int], salt: object) -> list[Key]:
        size = self.block_tokens
        return [(salt, tuple(tokens[: (index + 1) * size])) for index in range(len(tokens) // size)]
