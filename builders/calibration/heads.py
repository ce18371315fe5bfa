"""How often heads are right on given text, and the tree that follows from it (Cai et al. 2024, Medusa)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from builders.training.answers import Conversation
from builders.training.examples import once
from builders.training.features import FeatureStore
from builders.training.guesses import Vocabulary, ranks
from builders.training.measure import TOP, accuracies, best_tree, chain, rank_shares, rounded, tokens_per_pass
from builders.training.networks import HeadsNetwork
from builders.training.target import Target, as_float
from trtspec.executors.embedded.drafter_config import DrafterConfig
from trtspec.executors.embedded.drafter_weights import HeadsWeights, block_name, load_drafter
from trtspec.executors.embedded.weights import Weight
from trtspec.speculative import SpeculativeConfig, Tree

_BATCH_TOKENS = 256
"""Every place is scored over a whole vocabulary: few at once."""


@torch.no_grad()
def head_ranks(
    directory: Path, config: DrafterConfig, target: Target, text: Sequence[Conversation], store: FeatureStore
) -> list[Tensor]:
    """Ranks of the heads in an engine folder, as `builders.training.measure` reads them; the store has the states."""
    stored = load_drafter(directory, config, target.weights)
    if not isinstance(stored, HeadsWeights):
        raise ValueError(f"a drafter of kind {config.kind!r} has no heads")
    width = target.config.hidden_size
    network, blocks = HeadsNetwork(config, width, slice(0, width)), _blocks(stored)
    found: list[Tensor] = []
    for batch in once(text, store, _BATCH_TOKENS):
        guesses = functional_call(network, blocks, (batch, config.modules))
        found += ranks(guesses, batch, _vocabularies(config, stored))
    return found


def _blocks(stored: HeadsWeights[Weight]) -> dict[str, Tensor]:
    """The residual blocks under the names of the network's parameters."""
    found = {}
    for head, blocks in enumerate(stored.blocks):
        for index, block in enumerate(blocks):
            found[block_name(head, index, "weight")] = as_float(block.weight)
            found[block_name(head, index, "bias")] = block.bias.float()
    return found


def _vocabularies(config: DrafterConfig, stored: HeadsWeights[Weight]) -> Iterator[Vocabulary]:
    """Of each head; one dense output at a time."""
    size = config.vocabulary_size
    ids = torch.arange(size) if stored.token_ids is None else stored.token_ids
    shared = len(stored.outputs) == 1
    for head in range(config.modules):
        yield Vocabulary(ids, as_float(stored.outputs[0 if shared else head])[:size])


def choose_tree(config: SpeculativeConfig, found: Sequence[Tensor], nodes: int) -> SpeculativeConfig:
    """The configuration with the best tree within its depth; without one where no guess was ever right."""
    shares = rank_shares(found)[: config.num_speculative_tokens]
    return replace(config, tree=best_tree(shares, nodes))


def measured(config: SpeculativeConfig, found: Sequence[Tensor]) -> Mapping[str, Any]:
    """Accuracies of each head where the heads before it were right, and tokens per pass on the text."""
    depth = min(config.num_speculative_tokens, found[0].shape[1])
    tops = [dict(zip(map(str, TOP), map(rounded, item.top), strict=True)) for item in accuracies(found)]
    drafts: Mapping[str, Tree] = {"chain": chain(depth), "tree": config.tree}
    worth = {name: rounded(tokens_per_pass(found, tree)) for name, tree in drafts.items() if tree}
    return {"heads": tops, "tokens_per_pass": worth}
