"""A random language model over eight tokens whose law of token pairs can be written down, and drafters for it.

A "generation" here yields the first two tokens after a fixed prompt, for many seeds at once, through as many passes
as the draft's fate asks for. Verifiers are arguments, so that wrong ones can be planted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trtspec.decoding.draft import Draft, depths
from trtspec.decoding.rng import Lane, gumbel, seed_words, uniforms
from trtspec.decoding.sampling import ChoiceRows, choose, process
from trtspec.decoding.verify import Outcome, chain_rejection, settle, walk_tree
from trtspec.types import SamplingParams

VOCABULARY = 8
PROMPT_LENGTH = 5
DRAWS = 20_000


@dataclass(frozen=True)
class World:
    """Logits of the token after any pair of tokens: the model looks two tokens back. `drafter` is another model."""

    target: Tensor  # [V, V, V]: logits after (before last, last)
    drafter: Tensor  # [V, V, V]
    sampling: SamplingParams

    @property
    def p(self) -> Tensor:
        """The target's processed law, [V, V, V] float64."""
        return self._law(self.target, self.sampling)

    @property
    def q(self) -> Tensor:
        """The drafter's processed law."""
        return self._law(self.drafter, self.sampling)

    def pair_law(self) -> NDArray[np.float64]:
        """The enumerated law of the first two tokens after the prompt (0, 0), [V, V]."""
        first = self.p[0, 0]
        return (first.unsqueeze(1) * self.p[0]).numpy()

    def _law(self, logits: Tensor, sampling: SamplingParams) -> Tensor:
        flat = process(logits.reshape(-1, VOCABULARY), [sampling] * VOCABULARY**2)
        return flat.double().softmax(dim=1).reshape(VOCABULARY, VOCABULARY, VOCABULARY)


def make_world(sampling: SamplingParams, seed: int = 7) -> World:
    generator = torch.Generator().manual_seed(seed)
    shape = (VOCABULARY, VOCABULARY, VOCABULARY)
    target = torch.randn(shape, generator=generator) * 1.2
    return World(target, target + torch.randn(shape, generator=generator) * 0.8, sampling)


Contexts = Tensor  # [B, 2]: the last two tokens
Drafter = Callable[[World, Contexts, Tensor, Tensor], Draft]
"""(world, contexts, seeds key [2, B], position of the next token [B]) -> one draft a row."""
Verifier = Callable[[World, Contexts, Tensor, Tensor, Draft], Outcome]


def pair_counts(world: World, drafter: Drafter, verifier: Verifier, draws: int = DRAWS) -> NDArray[np.int64]:
    """Counts of the first two tokens over many seeds, [V, V]."""
    key = seed_words(list(range(1000, 1000 + draws)))
    every = torch.arange(draws)
    contexts, positions = torch.zeros(draws, 2, dtype=torch.int64), torch.full((draws,), PROMPT_LENGTH)
    first = _emit(world, drafter, verifier, contexts, key, positions)
    first_token = first.emitted[:, 0]
    second_token = first.emitted[:, 1].clone() if first.emitted.shape[1] > 1 else torch.full((draws,), -1)
    short = every[(first.accepted == 0)]
    if len(short):
        after = torch.stack([torch.zeros_like(short), first_token[short]], dim=1)
        second = _emit(world, drafter, verifier, after, key[:, short], positions[short] + 1)
        second_token[short] = second.emitted[:, 0]
    cells = (first_token * VOCABULARY + second_token).numpy()
    return np.bincount(cells, minlength=VOCABULARY**2).reshape(VOCABULARY, VOCABULARY)


def _emit(
    world: World, drafter: Drafter, verifier: Verifier, contexts: Tensor, key: Tensor, positions: Tensor
) -> Outcome:
    return verifier(world, contexts, key, positions, drafter(world, contexts, key, positions))


def node_contexts(draft: Draft, contexts: Contexts) -> Tensor:
    """The last two tokens at the root and at each node, [B, N + 1, 2]."""
    places = [contexts]
    for node in range(draft.width):
        parent = draft.parents[:, node] + 1
        above = torch.stack(places, dim=1)[torch.arange(draft.rows), parent]
        places.append(torch.stack([above[:, 1], draft.tokens[:, node]], dim=1))
    return torch.stack(places, dim=1)


# ------------------------------------------------------------------ drafters


def certain_chain(world: World, contexts: Tensor, key: Tensor, positions: Tensor) -> Draft:
    """The drafter's two best guesses in a row, proposed for certain."""
    rows = len(contexts)
    first = world.drafter[contexts[:, 0], contexts[:, 1]].argmax(dim=1)
    second = world.drafter[contexts[:, 1], first].argmax(dim=1)
    return Draft(torch.stack([first, second], 1), torch.tensor([[-1, 0]]).repeat(rows, 1), torch.full((rows,), 2))


def coupled_chain(world: World, contexts: Tensor, key: Tensor, positions: Tensor) -> Draft:
    """Two tokens drawn by the drafter with the target's own noise."""
    return _sampled_chain(world, contexts, key, positions, Lane.TARGET)


def sampled_chain(world: World, contexts: Tensor, key: Tensor, positions: Tensor) -> Draft:
    """Two tokens drawn by the drafter with noise of its own, and the laws they were drawn from."""
    return _sampled_chain(world, contexts, key, positions, Lane.DRAFT)


def _sampled_chain(world: World, contexts: Tensor, key: Tensor, positions: Tensor, lane: Lane) -> Draft:
    rows = len(contexts)
    before, last = contexts[:, 0], contexts[:, 1]
    tokens, laws = [], []
    for depth in range(2):
        law = world.q[before, last]
        noise = noise_at(key, positions + depth, lane)
        before, last = last, (law.log() + noise).argmax(dim=1)
        tokens.append(last)
        laws.append(law)
    parents = torch.tensor([[-1, 0]]).repeat(rows, 1)
    return Draft(torch.stack(tokens, 1), parents, torch.full((rows,), 2), torch.stack(laws, 1))


def certain_tree(world: World, contexts: Tensor, key: Tensor, positions: Tensor) -> Draft:
    """Three siblings at depth 1, two children under the second, one under the third."""
    rows = len(contexts)
    best = world.drafter[contexts[:, 0], contexts[:, 1]].topk(3, dim=1).indices
    under_second = world.drafter[contexts[:, 1], best[:, 1]].topk(2, dim=1).indices
    under_third = world.drafter[contexts[:, 1], best[:, 2]].topk(1, dim=1).indices
    parents = torch.tensor([[-1, -1, -1, 1, 1, 2]]).repeat(rows, 1)
    return Draft(torch.cat([best, under_second, under_third], 1), parents, torch.full((rows,), 6))


def ragged_tree(world: World, contexts: Tensor, key: Tensor, positions: Tensor) -> Draft:
    """The tree cut to a count that differs from row to row, 0 included; never by a value it removes."""
    tree = certain_tree(world, contexts, key, positions)
    return Draft(tree.tokens, tree.parents, torch.arange(tree.rows) % 7)


# ------------------------------------------------------------------ right verifiers


def noise_at(key: Tensor, positions: Tensor, lane: Lane) -> Tensor:
    """Gumbel noise of every token at a position, [B, V]."""
    places = positions.unsqueeze(1).expand(-1, VOCABULARY)
    tokens = torch.arange(VOCABULARY).expand(len(positions), VOCABULARY)
    return gumbel(key.unsqueeze(2), places, torch.zeros_like(places), tokens, lane)


def target_ids(world: World, contexts: Tensor, key: Tensor, positions: Tensor, draft: Draft) -> Tensor:
    """`choose` at the root and at each node, [B, N + 1]."""
    places = node_contexts(draft, contexts)
    at = torch.cat([positions.unsqueeze(1), positions.unsqueeze(1) + depths(draft)], dim=1)
    seeds = (key[0] + (key[1] << 32)).unsqueeze(1).expand_as(at)
    count = at.numel()
    rows = ChoiceRows([world.sampling] * count, seeds.flatten().tolist(), at.flatten().tolist(), [0] * count)
    return choose(world.target[places[..., 0], places[..., 1]].reshape(count, VOCABULARY), rows).reshape(at.shape)


def by_walk(world: World, contexts: Tensor, key: Tensor, positions: Tensor, draft: Draft) -> Outcome:
    """`choose` and `walk_tree`."""
    return walk_tree(draft, target_ids(world, contexts, key, positions, draft))


def rejection_inputs(
    world: World, contexts: Tensor, key: Tensor, positions: Tensor, draft: Draft
) -> tuple[Tensor, Tensor, Tensor]:
    """Target rows, accept draws and final-draw noise for `chain_rejection`."""
    places = node_contexts(draft, contexts)
    at = positions.unsqueeze(1) + torch.arange(draft.width + 1)
    accept = uniforms(
        key.unsqueeze(2), at[:, :-1], torch.zeros_like(at[:, :-1]), torch.zeros_like(at[:, :-1]), Lane.ACCEPT
    )
    noise = torch.stack([noise_at(key, at[:, i], Lane.TARGET) for i in range(draft.width + 1)], dim=1)
    return world.p[places[..., 0], places[..., 1]], accept, noise


def by_rejection(world: World, contexts: Tensor, key: Tensor, positions: Tensor, draft: Draft) -> Outcome:
    """`chain_rejection`."""
    return reject(draft, *rejection_inputs(world, contexts, key, positions, draft))


def reject(draft: Draft, target: Tensor, accept: Tensor, noise: Tensor) -> Outcome:
    """`chain_rejection` and its last draw; `noise` is [B, N + 1, V]."""
    path, law = chain_rejection(draft, target, accept)
    ends = (path >= 0).sum(dim=1)
    return settle(draft, path, (law.log() + noise[torch.arange(draft.rows), ends]).argmax(dim=1))
