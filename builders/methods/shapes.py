"""How the drafts of an engine look, in words."""

from __future__ import annotations

from trtspec.speculative import SpeculativeConfig


def describe_drafts(config: SpeculativeConfig) -> str:
    """Shape and depth of the drafts, and what comes before them."""
    depth = config.num_speculative_tokens
    if config.dynamic_tree:
        shape = f"trees of up to {config.max_tree_nodes} nodes, {depth} deep, that grow where it is most certain"
    elif config.tree:
        shape = f"a tree of {len(config.tree)} nodes, {max(len(path) for path in config.tree)} deep"
    else:
        shape = f"chains of up to {depth} tokens"
    lookup = f", after matches of {config.ngram_first} or more tokens" if config.ngram_first else ""
    return shape + lookup
