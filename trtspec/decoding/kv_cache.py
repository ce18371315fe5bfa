"""Which positions of which sequence live in which block. Host bookkeeping; the tensors are the runner's.

A slot is block * block_tokens + offset. A sequence's slots are, in order: its committed positions, then in the
running pass the tokens fed to it, then one slot for each draft node.

Sequences whose text begins alike share blocks. Only full blocks of committed text are published, and a pass writes
at positions after the committed ones, so a block that anybody else can read is never written. Copies that a commit
leaves are made before anything is written or read in the next pass: a block may be published although some are still
to come, and they do no harm where the block was given away meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trtspec.decoding.prefix_index import BlockNames, PrefixIndex


class SlotCopy(NamedTuple):
    """Keys and values to move before the next pass writes anything; destination < source."""

    source: int
    destination: int


@dataclass(slots=True)
class _Table:
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    """Committed positions."""
    published: int = 0
    """So many blocks in front were taken over or offered to others."""


class KVCache:
    """Fixed pool of blocks shared by all sequences. A block is free, or rests in the prefix index, or has users."""

    def __init__(self, blocks: int, block_tokens: int, prefix_sharing: bool = True) -> None:
        self.total_blocks = blocks
        self.block_tokens = block_tokens
        self.prefix_sharing = prefix_sharing
        self._free = list(range(blocks - 1, -1, -1))
        self._users = [0] * blocks
        self._index = PrefixIndex()
        self._tables: dict[int, _Table] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks without a user; the text of some may still be found."""
        return len(self._free) + self._index.resting

    def length(self, sequence_id: int) -> int:
        """Committed positions of a sequence; 0 for an unknown one."""
        table = self._tables.get(sequence_id)
        return table.length if table else 0

    def blocks(self, sequence_id: int) -> Sequence[int]:
        """The block table, committed and reserved positions together. Not a copy: read only."""
        return self._tables[sequence_id].blocks

    def room(self, sequence_id: int) -> int:
        """How many positions beyond the committed ones a reservation could get."""
        table = self._tables.get(sequence_id, _Table())
        return (len(table.blocks) + self.free_blocks) * self.block_tokens - table.length

    def open(self, sequence_id: int, tokens: Sequence[int], names: Sequence[BlockNames] = ()) -> int | None:
        """Reserve positions for a new sequence's text, beginning with the longest run of blocks that hold it already.

        Returns how many positions were found, at most all but the last one, whose logits are needed; None where there
        is no room. A block is looked for under each of the names.
        """
        found = self._find(tokens, names)
        woken = sum(self._users[block] == 0 for block in found)
        if self._blocks_for(len(tokens)) - len(found) > self.free_blocks - woken:
            return None
        for block in found:
            self._index.wake(block)
            self._users[block] += 1
        length = len(found) * self.block_tokens
        self._tables[sequence_id] = _Table(found, length, len(found))
        self.reserve(sequence_id, len(tokens) - length)
        return length

    def reserve(self, sequence_id: int, count: int) -> bool:
        """Make sure that `count` positions follow the committed ones; all or nothing."""
        table = self._tables.setdefault(sequence_id, _Table())
        missing = self._blocks_for(table.length + count) - len(table.blocks)
        if missing > self.free_blocks:
            if not table.blocks:
                del self._tables[sequence_id]
            return False
        table.blocks.extend(self._fresh() for _ in range(missing))
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

    def publish(self, sequence_id: int, tokens: Sequence[int], names: BlockNames) -> None:
        """Let others find the full blocks of a sequence's text, as far as it is committed."""
        if self.prefix_sharing:
            table, known = self._tables[sequence_id], names.of(tokens)
            full = min(len(known), table.length // self.block_tokens)
            for index in range(table.published, full):
                self._index.add(known[index], table.blocks[index])
            table.published = full

    def withdraw(self, sequence_id: int, position: int = 0) -> None:
        """Let nobody find a sequence's blocks from a position on any more: what they hold is in doubt."""
        for block in self._tables[sequence_id].blocks[position // self.block_tokens :]:
            self._index.forget(block)

    def trim(self, sequence_id: int) -> None:
        """Give back the blocks beyond the committed positions, such as those of rejected nodes."""
        table = self._tables[sequence_id]
        keep = self._blocks_for(table.length)
        self._give_back(table.blocks[keep:])
        del table.blocks[keep:]

    def release(self, sequence_id: int) -> None:
        """Give back all blocks of a sequence; an unknown one has none."""
        table = self._tables.pop(sequence_id, None)
        if table:
            self._give_back(table.blocks)

    def check(self) -> None:
        """Assert that no block is lost, that users are counted right, and that nobody writes what others can read."""
        users = Counter(block for table in self._tables.values() for block in table.blocks)
        assert self._users == [users[block] for block in range(self.total_blocks)], "users are counted wrong"
        self._index.check(self._users)
        unowned = [block for block in range(self.total_blocks) if not self._users[block] and block not in self._index]
        assert sorted(self._free) == unowned, "a block is lost or has two owners"
        for sequence_id, table in self._tables.items():
            assert table.length <= len(table.blocks) * self.block_tokens, f"sequence {sequence_id} outgrew its blocks"
            writable = table.blocks[table.length // self.block_tokens :]
            assert all(self._users[block] == 1 and block not in self._index for block in writable), (
                f"sequence {sequence_id} could write what others read"
            )

    def _find(self, tokens: Sequence[int], names: Sequence[BlockNames]) -> list[int]:
        if not self.prefix_sharing:
            return []
        most = (len(tokens) - 1) // self.block_tokens
        return self._index.find(zip(*(item.of(tokens)[:most] for item in names), strict=True))

    def _fresh(self) -> int:
        """A block for one sequence alone."""
        block = self._free.pop() if self._free else self._index.take()
        self._users[block] = 1
        return block

    def _give_back(self, blocks: Sequence[int]) -> None:
        """Last one first, so that of a text its end is given away before its beginning, without which it is lost."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._rest_or_free(block)

    def _rest_or_free(self, block: int) -> None:
        if block in self._index:
            self._index.rest(block)
        else:
            self._free.append(block)

    def _blocks_for(self, positions: int) -> int:
        return -(-positions // self.block_tokens)

    def _slot(self, table: _Table, position: int) -> int:
        return table.blocks[position // self.block_tokens] * self.block_tokens + position % self.block_tokens
