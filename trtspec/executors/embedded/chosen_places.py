"""Which places of a pass are chosen at once, and how each is: the host's half of choosing on a device.

All numbers travel in one copy. It knows nothing of kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    first, width = roots(plan, draft).tolist(), draft.width + 1
    columns = list(zip(plan.rows, draft.counts.tolist(), draft.parents.tolist(), strict=True))
    plain: list[tuple[Ints, SamplingParams]] = []
    others: list[tuple[Ints, SamplingParams]] = []
    for index, (row, count, parents) in enumerate(columns):
        if taken[index]:
            found = _places(row, place_depths(parents[:count]), first[index], index * width)
            (plain if _is_plain(row.request.sampling) else others).append((found, row.request.sampling))
    made = [_group(np.concatenate([found for found, _ in plain], axis=1), None)] if plain else []
    if not others:
        return made
    sampling = [params for found, params in others for _ in range(found.shape[1])]
    table = np.concatenate([found for found, _ in others], axis=1)
    starts = range(0, len(sampling), most)
    return made + [_group(table[:, start : start + most], sampling[start : start + most]) for start in starts]


def _is_plain(sampling: SamplingParams) -> bool:
    """What the model said is what is chosen from."""
    return sampling.greedy or (sampling.temperature == 1.0 and not sampling.truncates)


def _places(row: PlanRow, depths: Sequence[int], first: int, cell: int) -> Ints:
    """One row's root and nodes, [6, 1 + n], in the order of a group's arrays."""
    table = np.empty((6, len(depths)), np.int64)
    table[0] = np.arange(first, first + len(depths))
    table[1] = np.arange(cell, cell + len(depths))
    table[2] = bits(row.request.seed)
    table[3] = row.next_position + np.array(depths)
    table[4] = row.choice
    table[5] = not row.request.sampling.greedy
    return table


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
