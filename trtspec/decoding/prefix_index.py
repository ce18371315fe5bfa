"""Which blocks hold which text: names of blocks, and the blocks that can be found by name.

It knows nothing of sequences and of who uses a block.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

_DIGEST_BYTES = 32
"""Names stand for texts of other requests, so nobody may be able to make two texts with one name."""


class BlockNames:
    """Names of the full blocks of one growing text.

    A name is a digest of the name before it and of the block's tokens; the first one follows a digest of the salt.
    Equal names so mean equal text from the very start, under the same salt.
    """

    def __init__(self, salt: str, block_tokens: int) -> None:
        self._salt = salt
        self._block_tokens = block_tokens
        self._names: list[bytes] = []

    def of(self, tokens: Sequence[int]) -> Sequence[bytes]:
        """One name for each full block of the text, which must go on from the text given last time.

        Each name is computed once. Read only, and only until the next call.
        """
        size = self._block_tokens
        for end in range(size * (len(self._names) + 1), len(tokens) + 1, size):
            above = self._names[-1] if self._names else _digest(b"salt", self._salt.encode(errors="surrogatepass"))
            self._names.append(_digest(b"block", above, array("q", tokens[end - size : end]).tobytes()))
        return self._names


def _digest(kind: bytes, *parts: bytes) -> bytes:
    """The last part alone may differ in size, so the parts of two texts are never taken for each other."""
    return blake2b(b"".join(parts), digest_size=_DIGEST_BYTES, person=kind).digest()


class PrefixIndex:
    """Blocks by name. Those that nobody uses rest: they are given away longest unused first."""

    def __init__(self) -> None:
        self._block_by_name: dict[bytes, int] = {}
        self._name_by_block: dict[int, bytes] = {}
        self._resting: dict[int, None] = {}  # in the order in which they came to rest

    def __contains__(self, block: int) -> bool:
        return block in self._name_by_block

    @property
    def resting(self) -> int:
        """How many blocks could be taken."""
        return len(self._resting)

    def find(self, names: Iterable[Sequence[bytes]]) -> list[int]:
        """The blocks of the longest run of known texts, each under the first of its names that is known."""
        found: list[int] = []
        for alternatives in names:
            known = [self._block_by_name[name] for name in alternatives if name in self._block_by_name]
            if not known:
                break
            found.append(known[0])
        return found

    def add(self, name: bytes, block: int) -> None:
        """Make a block findable; where another one holds the same text, that one stays the one to find."""
        if name not in self._block_by_name:
            self._block_by_name[name] = block
            self._name_by_block[block] = name

    def rest(self, block: int) -> None:
        """Nobody uses this block any more."""
        self._resting[block] = None

    def wake(self, block: int) -> None:
        """Somebody uses this block; one that does not rest is no error."""
        self._resting.pop(block, None)

    def take(self) -> int:
        """Give away the resting block that was unused longest; its text is not found any more."""
        block = next(iter(self._resting))
        del self._resting[block]
        self.forget(block)
        return block

    def forget(self, block: int) -> None:
        """A block that somebody uses is not found any more; one without a name is no error."""
        name = self._name_by_block.pop(block, None)
        if name is not None:
            del self._block_by_name[name]

    def check(self, users: Sequence[int]) -> None:
        """Assert that both directions agree and that exactly the named blocks without a user rest."""
        assert {block: name for name, block in self._block_by_name.items()} == self._name_by_block, "the index is torn"
        unused = {block for block in self._name_by_block if users[block] == 0}
        assert unused == set(self._resting), "a block rests in use, or does not rest unused"
