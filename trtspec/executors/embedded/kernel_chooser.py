"""Decides passes with kernels, where the logits are: places all at once, the walk after them, one copy back.

Three kinds of pass or row go as they do on the host, because that is cheaper there:

- Passes in which no row draws noise, plain greedy decoding above all. An arg-max of PyTorch's and one copy decide them.
  The host's own time is what counts then: of plain decoding 0.03 ms, where sending what kernels are told takes 0.2 ms
  before the first launch; of drafts 0.2 to 0.3 ms while two nodes or less stay, where kernels take 0.25 ms, the same
  every time, and three launches. (One thread of a Zen 4 processor, 8 rows, chains of 8.)
- Rows that are edited by token or by history, level by level: the host makes their edits place by place, penalties in a
  tenth of a millisecond and more. At places of a tree that the walk never reaches they would cost far more than waiting
  for the device at each level.
- Drafts of truncated rows, level by level, where they have more places than are processed together. Up to there
  processing places that the walk never reaches is reckoned to cost the device less than another level costs the host,
  some 0.9 ms; that is not measured on a GPU.

Everything else waits for the device once; where top_p cuts, twice more for each group of places, whose nuclei must be
counted before they are sorted.

Log-probabilities are not the kernels': what is told is the model's own law and ranks, and not the processed one.

Not yet run on a GPU: tests interpret the kernels, and `scripts/gpu-check` compares them with PyTorch where a GPU is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plugins import launch, launch_verification
from plugins.eager_verification import ChainOutcome
from plugins.launch import ChosenTokens
from trtspec.decoding.chooser import HOST, accept_draws, settled
from trtspec.decoding.choosing import Place, choose_reached, is_edited, starts
from trtspec.decoding.edits import Editor
from trtspec.decoding.pass_rows import PassRows
from trtspec.decoding.plan import PlanRow
from trtspec.decoding.sampling import NO_TOKEN, process
from trtspec.decoding.sending import send
from trtspec.decoding.verify import NO_NODE, Outcome, walk_tree
from trtspec.executors.embedded.chosen_places import Group, OnDevice, Placed, bits, groups, send_all

_MOST_PROCESSED = 1 << 24
"""Logits that are processed together. Each step of that keeps a float32 copy, here of 64 MiB at most."""
_GROUP_ARRAYS = len(Placed._fields)


@dataclass(frozen=True, slots=True)
class Kernels:
    """What `plugins` launches, or their eager twins."""

    choose_token: Callable[..., ChosenTokens]
    walk_tree: Callable[[Tensor, Tensor, Tensor, Tensor], Outcome]
    chain_rejection: Callable[..., ChainOutcome]


LAUNCHED = Kernels(launch.choose_token, launch_verification.walk_tree, launch_verification.chain_rejection)


class KernelChooser:
    """Implements `Chooser`."""

    def __init__(self, kernels: Kernels = LAUNCHED, most_processed: int = _MOST_PROCESSED) -> None:
        self._kernels = kernels
        self._most_processed = most_processed

    def exact(self, rows: PassRows, editor: Editor) -> Outcome:
        plan, draft, logits = rows
        at_once = self._at_once(rows)
        if all(row.request.sampling.greedy for row, taken in zip(plan.rows, at_once, strict=True) if taken):
            return HOST.exact(rows, editor)
        decided = self._launch(rows, at_once)
        others = [row.samples and not taken for row, taken in zip(plan.rows, at_once, strict=True)]
        if not any(others):
            return _fetched(rows, decided)
        ids = torch.full((draft.rows, draft.width + 1), NO_TOKEN)
        choose_reached(others, ids, plan, draft, logits, editor)  # while the device goes on
        return _joined(others, walk_tree(draft, ids), _fetched(rows, decided))

    def rejection(self, rows: PassRows, editor: Editor) -> Outcome:
        plan, draft, logits = rows
        chains = [root.with_nodes() for root in starts(plan, draft)]
        noise = np.array([(bits(row.request.seed), row.next_position, row.choice) for row in plan.rows], np.int64).T
        told = send_all([draft.tokens, draft.counts, draft.rows_certain, *noise], logits.device)
        tokens, counts, certain, seeds, positions, choices = told
        accepted, token = self._kernels.chain_rejection(
            self._scores(rows, [place for chain in chains for place in chain], editor),
            _drawn_scores(rows),
            tokens.narrow.view(draft.tokens.shape),
            *(item.narrow for item in (counts, certain)),
            send(accept_draws(plan, draft.width).float(), logits.device),
            seeds.wide,
            *(item.narrow for item in (positions, choices)),
            logits.shape[1],
        )
        kept, bonus = torch.stack([accepted, token]).cpu().long()
        steps = torch.arange(draft.width).expand(draft.rows, -1)
        path = torch.where(steps < kept.unsqueeze(1), steps, NO_NODE)
        return settled(rows, chains, path, bonus, editor)

    def _at_once(self, rows: PassRows) -> list[bool]:
        """Rows where kernels choose at all places."""
        columns = list(zip(rows.plan.rows, rows.draft.counts.tolist(), strict=True))
        able = [row.samples and not is_edited(row) for row, _ in columns]
        cut = [count if taken and _is_cut(row) else 0 for taken, (row, count) in zip(able, columns, strict=True)]
        if sum(nodes + 1 for nodes in cut if nodes) <= self._places_at_once(rows.logits):
            return able
        return [taken and not nodes for taken, nodes in zip(able, cut, strict=True)]

    def _launch(self, rows: PassRows, taken: Sequence[bool]) -> list[Tensor]:
        """Choose everywhere in the taken rows and walk; only top_p waits. In rows without nodes the choice is all."""
        plan, draft, logits = rows
        made = groups(plan, draft, taken, self._places_at_once(logits))
        arrays = [array for group in made for array in group.arrays]
        nodes = [draft.tokens, draft.parents, draft.counts] if draft.width else []
        sent = send_all([*arrays, *nodes], logits.device)
        ids = logits.new_full((draft.rows * (draft.width + 1),), NO_TOKEN, dtype=torch.int32)
        for number, group in enumerate(made):
            placed = Placed.of(sent[number * _GROUP_ARRAYS : (number + 1) * _GROUP_ARRAYS])
            ids.index_copy_(0, placed.cell, self._chosen(logits, group, placed))
        ids = ids.view(draft.rows, -1)
        return list(self._walk(rows, ids, sent[len(arrays) :])) if draft.width else [ids]

    def _walk(self, rows: PassRows, ids: Tensor, nodes: Sequence[OnDevice]) -> Outcome:
        tokens, parents, counts = (item.narrow for item in nodes)
        shape = rows.draft.tokens.shape
        return self._kernels.walk_tree(ids, tokens.view(shape), parents.view(shape), counts)

    def _chosen(self, logits: Tensor, group: Group, placed: Placed) -> Tensor:
        """The tokens of a group, [T] int32."""
        every = np.array_equal(group.source, np.arange(len(logits)))
        said = logits.contiguous() if every else logits.index_select(0, placed.source)
        scores = said if group.sampling is None else process(said, group.sampling)
        return self._kernels.choose_token(scores, *placed[2:], logits.shape[1]).ids

    def _scores(self, rows: PassRows, places: Sequence[Place], editor: Editor) -> Tensor:
        """The target's scores after each place of some chains, [B, N + 1, V] float32; anything beyond a chain's end."""
        logits, width = rows.logits, rows.draft.width + 1
        scores = logits.new_empty((rows.draft.rows * width, logits.shape[1]), dtype=torch.float32)
        cells = np.array([place.index * width + place.node + 1 for place in places], np.int64)
        most = self._places_at_once(logits)
        for start in range(0, len(places), most):
            part = slice(start, start + most)
            cell = send(torch.from_numpy(cells[part]), logits.device)
            scores.index_copy_(0, cell, rows.scores(places[part], editor))
        return scores.view(rows.draft.rows, width, -1)

    def _places_at_once(self, logits: Tensor) -> int:
        return max(1, self._most_processed // logits.shape[1])


def _is_cut(row: PlanRow) -> bool:
    """Tokens are truncated before one is drawn."""
    return row.request.sampling.truncates and not row.request.sampling.greedy


def _drawn_scores(rows: PassRows) -> Tensor:
    """Scores of the laws that the nodes were drawn from, [B, N, V] float32."""
    if rows.draft.probs is None:
        raise ValueError("rejection needs the law of every drafted token, and this draft has none")
    return rows.draft.probs.to(rows.logits.device).log().contiguous()


def _fetched(rows: PassRows, decided: Sequence[Tensor]) -> Outcome:
    """What was decided, on the CPU: here a pass waits for all that was launched."""
    flat = torch.cat([item.flatten() for item in decided]).cpu().long()
    parts = flat.split([item.numel() for item in decided])
    columns = [part.view(item.shape) for part, item in zip(parts, decided, strict=True)]
    return Outcome(*columns) if rows.draft.width else walk_tree(rows.draft, columns[0])


def _joined(first: Sequence[bool], one: Outcome, other: Outcome) -> Outcome:
    """Some rows of an outcome, the others of another."""
    mine = torch.tensor(first)
    columns = zip(one, other, strict=True)
    return Outcome(*(torch.where(mine.view(-1, *[1] * (a.dim() - 1)), a, b) for a, b in columns))
