"""Which positions of which sequence live in which block. Host bookkeeping; the tensors are the runner's.

A slot is block * block_tokens + offset. A sequence's slots are, in order: its committed positions, then in the
running pass the tokens fed to it, then one slot for each draft node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class SlotCopy(NamedTuple):
    """Keys and values to move before the next pass writes anything; destination < source."""

    source: int
    destination: int


@dataclass(slots=True)
class _Table:
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    """Committed positions."""


class KVCache:
    """Fixed pool of blocks shared by all sequences."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.total_blocks = blocks
        self.block_tokens = block_tokens
        self._free = list(range(blocks - 1, -1, -1))
        self._tables: dict[int, _Table] = {}

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def length(self, sequence_id: int) -> int:
        """Committed positions of a sequence; 0 for an unknown one."""
        table = self._tables.get(sequence_id)
        return table.length if table else 0

    def blocks(self, sequence_id: int) -> tuple[int, ...]:
        """The block table, committed and reserved positions together."""
        return tuple(self._tables[sequence_id].blocks)

    def room(self, sequence_id: int) -> int:
        """How many positions beyond the committed ones a reservation could get."""
        table = self._tables.get(sequence_id, _Table())
        return (len(table.blocks) + self.free_blocks) * self.block_tokens - table.length

    def reserve(self, sequence_id: int, count: int) -> bool:
        """Make sure that `count` positions follow the committed ones; all or nothing."""
        table = self._tables.setdefault(sequence_id, _Table())
        missing = self._blocks_for(table.length + count) - len(table.blocks)
        if missing > self.free_blocks:
            if not table.blocks:
                del self._tables[sequence_id]
            return False
        table.blocks.extend(self._free.pop() for _ in range(missing))
        return True

    def commit(self, sequence_id: int, fed: int, path: Sequence[int] = ()) -> tuple[SlotCopy, ...]:
        """Keep the fed positions and the accepted nodes.

        Accepted nodes may lie scattered among the draft's slots; the copies move them to follow the fed positions.
        """
        table = self._tables[sequence_id]
        start = table.length + fed
        copies = tuple(
            SlotCopy(self._slot(table, start + node), self._slot(table, start + index))
            for index, node in enumerate(path)
            if node != index
        )
        table.length = start + len(path)
        return copies

    def trim(self, sequence_id: int) -> None:
        """Give back the blocks beyond the committed positions, such as those of rejected nodes."""
        table = self._tables[sequence_id]
        keep = self._blocks_for(table.length)
        self._free.extend(reversed(table.blocks[keep:]))
        del table.blocks[keep:]

    def release(self, sequence_id: int) -> None:
        """Give back all blocks of a sequence; an unknown one has none."""
        table = self._tables.pop(sequence_id, None)
        if table:
            self._free.extend(reversed(table.blocks))

    def check(self) -> None:
        """Assert that every block has exactly one owner and every sequence enough blocks."""
        owned = [block for table in self._tables.values() for block in table.blocks]
        assert sorted(owned + self._free) == list(range(self.total_blocks)), "a block is lost or has two owners"
        for sequence_id, table in self._tables.items():
            assert table.length <= len(table.blocks) * self.block_tokens, f"sequence {sequence_id} outgrew its blocks"

    def _blocks_for(self, positions: int) -> int:
        return -(-positions // self.block_tokens)

    def _slot(self, table: _Table, position: int) -> int:
        return table.blocks[position // self.block_tokens] * self.block_tokens + position % self.block_tokens
