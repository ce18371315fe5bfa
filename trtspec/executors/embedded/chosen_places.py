"""Which places of a pass are chosen at once, and how each is: the host's half of choosing on a device.

All numbers travel in one copy. It knows nothing of kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trtspec.decoding.draft import Draft, place_depths
from trtspec.decoding.plan import PlanRow, StepPlan, roots
from trtspec.decoding.sending import send
from trtspec.types import SamplingParams

Ints = NDArray[np.int64]

_ALIGNED = 4
"""Triton compiles a kernel anew for pointers that are no multiple of 16 bytes, so every array begins at one."""


@dataclass(frozen=True, slots=True)
class Group:
    """T places that one launch chooses at: of logits as they are, or of processed ones."""

    source: Ints  # [T]: rows of the logits
    cell: Ints  # [T]: where the token goes in [B, N + 1], flattened
    seeds: Ints  # [T], the 64 bits
    positions: Ints  # [T]
    choices: Ints  # [T]
    noisy: Ints  # [T]: 1 where noise is added
    sampling: Sequence[SamplingParams] | None
    """How each place is processed first; None where logits are as the model said them."""

    @property
    def arrays(self) -> tuple[Ints, ...]:
        """What the device is told, in the order of `Placed`."""
        unwanted = np.full_like(self.source, -1)
        return self.source, self.cell, self.seeds, self.positions, self.choices, self.noisy, unwanted


class Placed(NamedTuple):
    """A group's arrays where its logits are."""

    source: Tensor  # [T] int64
    cell: Tensor  # [T] int64
    seeds: Tensor  # [T] int64; the others are int32
    positions: Tensor
    choices: Tensor
    noisy: Tensor
    wanted: Tensor
    """No token's log-probability is asked for."""

    @classmethod
    def of(cls, sent: Sequence[OnDevice]) -> Placed:
        wide, narrow = [item.wide for item in sent[:3]], [item.narrow for item in sent[3:]]
        return cls(*wide, *narrow)


def groups(plan: StepPlan, draft: Draft, taken: Sequence[bool], most: int) -> list[Group]:
    """All places of the taken rows, which nothing edits; of those to be processed at most so many in a group."""
    row, table = _places(plan, draft, np.flatnonzero(taken))
    plain = np.array([_is_plain(item.request.sampling) for item in plan.rows], np.bool_)[row]
    made = [_group(table[:, plain], None)] if plain.any() else []
    sampling = [plan.rows[index].request.sampling for index in row[~plain].tolist()]
    others = table[:, ~plain]
    starts = range(0, len(sampling), most)
    return made + [_group(others[:, start : start + most], sampling[start : start + most]) for start in starts]


def _is_plain(sampling: SamplingParams) -> bool:
    """What the model said is what is chosen from."""
    return sampling.greedy or (sampling.temperature == 1.0 and not sampling.truncates)


def _places(plan: StepPlan, draft: Draft, rows: Ints) -> tuple[Ints, Ints]:
    """Root and nodes of some rows, one row after the other: whose each is, [T], and [6, T] as a group's arrays."""
    counts, parents = draft.counts.tolist(), draft.parents.tolist()
    deep = [place_depths(parents[index][: counts[index]]) for index in rows.tolist()]
    sizes = np.array([len(item) for item in deep], np.int64)
    row = np.repeat(rows, sizes)
    place = np.arange(len(row)) - np.repeat(sizes.cumsum() - sizes, sizes)
    told = np.array([_of_row(item) for item in plan.rows], np.int64)[row]
    table = np.empty((6, len(row)), np.int64)
    table[0] = roots(plan, draft).numpy()[row] + place
    table[1] = row * (draft.width + 1) + place
    table[2:] = told.T
    table[3] += np.fromiter(chain.from_iterable(deep), np.int64, len(row))
    return row, table


def _of_row(row: PlanRow) -> tuple[int, int, int, bool]:
    """What all places of a row have, in the order of a group's arrays; the position is that of the root."""
    return bits(row.request.seed), row.next_position, row.choice, not row.request.sampling.greedy


def _group(table: Ints, sampling: Sequence[SamplingParams] | None) -> Group:
    source, cell, seeds, positions, choices, noisy = table
    return Group(source, cell, seeds, positions, choices, noisy, sampling)


def bits(seed: int) -> int:
    """The 64 bits of a seed as a signed number."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


class OnDevice(NamedTuple):
    """Numbers on a device, twice."""

    wide: Tensor  # int64
    narrow: Tensor  # int32: of what does not fit, the lower bits


def send_all(arrays: Iterable[Ints | Tensor], device: torch.device) -> list[OnDevice]:
    """Vectors of whole numbers, in one copy."""
    flat = [np.asarray(item).reshape(-1) for item in arrays]
    places = [-(-len(item) // _ALIGNED) * _ALIGNED for item in flat]
    packed = np.zeros(sum(places), np.int64)
    begins = [0, *np.cumsum(places).tolist()]
    for begin, item in zip(begins, flat, strict=False):
        packed[begin : begin + len(item)] = item
    wide = send(torch.from_numpy(packed), device)
    narrow = wide.int()
    parts = [slice(begin, begin + len(item)) for begin, item in zip(begins, flat, strict=False)]
    return [OnDevice(wide[part], narrow[part]) for part in parts]
