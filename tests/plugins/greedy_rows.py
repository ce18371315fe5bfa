"""Batches for greedy verification of trees, and what the oracles say of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from plugins import eager_verification
from trtspec.decoding.sampling import best_tokens

LARGEST = 65504.0
"""Of float16's numbers."""
VALUES = (0.0, -0.0, 1.0, 1.0, 2.0, -3.5, LARGEST, -math.inf, math.inf, math.nan)
"""Few, so that there are ties."""
_TAME = len(VALUES) - 3


class GreedyRows(NamedTuple):
    """The inputs of an engine for greedy trees, in order."""

    logits: Tensor
    tokens: Tensor
    parents: Tensor
    counts: Tensor

    def expected(self, vocabulary: int) -> dict[str, Tensor]:
        """By the names of an engine's outputs."""
        rows, places, _ = self.logits.shape
        flat = self.logits[..., :vocabulary].reshape(rows * places, vocabulary)
        ids = best_tokens(flat).reshape(rows, places).int()
        return {"ids": ids, **eager_verification.walk_tree(ids, *self[1:])._asdict()}


@st.composite
def greedy_rows(draw: st.DrawFn, vocabulary: int, most_nodes: int) -> GreedyRows:
    """Trees and chains of tokens that the target often chooses; padding is poison, and some parents are none."""
    rows, nodes, padding = draw(st.integers(1, 4)), draw(st.integers(1, most_nodes)), draw(st.integers(0, 3))
    source = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    wild = draw(st.booleans())
    shape = (rows, nodes + 1, vocabulary + padding)
    kinds = torch.randint(0, len(VALUES) if wild else _TAME, shape, generator=source)
    logits = torch.tensor(VALUES)[kinds]
    logits[..., vocabulary:] = draw(st.sampled_from([math.nan, math.inf, 1e4]))
    reach = draw(st.sampled_from([1, 3, nodes]))
    parents = [[int(torch.randint(max(-1, i - reach), i, (), generator=source)) for i in range(nodes)] for _ in logits]
    taken = GreedyRows(logits, torch.zeros(rows, nodes).int(), torch.tensor(parents).int(), torch.zeros(rows).int())
    ids = taken.expected(vocabulary)["ids"]
    liked = ids.gather(1, taken.parents.long() + 1).clamp(min=0)
    other = torch.randint(0, vocabulary, (rows, nodes), generator=source).int()
    tokens = torch.where(
        torch.rand(rows, nodes, generator=source) < draw(st.sampled_from([0.3, 0.9, 1.0])), liked, other
    )
    counts = torch.randint(0, nodes + 1, (rows,), generator=source).int()
    if draw(st.booleans()):
        beyond = torch.arange(nodes) >= counts.unsqueeze(1)
        return taken._replace(tokens=tokens, parents=taken.parents.masked_fill(beyond, 2**31 - 1), counts=counts)
    return taken._replace(tokens=tokens, counts=counts)


def chain_that_is_liked(nodes: int, vocabulary: int, wrong: int | None = None) -> GreedyRows:
    """A chain that the target follows to its end, or to the node that is wrong."""
    logits = torch.zeros(1, nodes + 1, vocabulary)
    ids = torch.arange(nodes + 1) % (vocabulary - 1)
    logits[0, torch.arange(nodes + 1), ids] = 1.0
    tokens = ids[:nodes].clone()
    if wrong is not None:
        tokens[wrong] = vocabulary - 1
    parents = torch.arange(-1, nodes - 1)
    return GreedyRows(logits, tokens.int().unsqueeze(0), parents.int().unsqueeze(0), torch.tensor([nodes]).int())


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == torch.int32, name
        assert torch.equal(found[name], tensor), (name, found[name], tensor)
