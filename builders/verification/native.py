"""Greedy verification of trees without plugins: arg-max and walk in layers that every TensorRT has.

It keeps the rules of `trtspec.decoding.sampling.best_tokens` and `trtspec.decoding.verify.walk_tree`, which are its
oracles. No loop: all nodes look at once whether the target chose them, and then, in steps that double, whether it
chose all that is above them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from builders.verification.layers import Layers, Tensor
from builders.verification.limits import Limits
from trtspec.decoding.draft import ROOT
from trtspec.decoding.sampling import NO_TOKEN
from trtspec.decoding.verify import NO_NODE


def greedy_trees(layers: Layers, inputs: Mapping[str, Tensor], limits: Limits) -> dict[str, Tensor]:
    """What the target chooses, and how far down each tree that leads."""
    ids = best_tokens(layers, inputs["logits"], limits)
    return {"ids": ids, **walk_tree(layers, ids, inputs, limits.nodes.most)}


def best_tokens(layers: Layers, logits: Tensor, limits: Limits) -> Tensor:
    """The best token of each place, [B, N + 1]; of equals the lowest, and none where the best is no finite number."""
    if limits.width.most > limits.vocabulary:
        logits = layers.first_columns(logits, limits.vocabulary)
    scores = layers.cast(logits, "float32")
    broken = layers.is_nan(scores)
    any_broken = layers.largest(layers.cast(broken, "int32"), 2)
    scores = layers.select(broken, layers.constant([0.0], "float32", [1, 1, 1]), scores)
    best = layers.largest(scores, 2)
    columns = layers.count_up(layers.constant([limits.vocabulary], "int64", [1]))
    columns = layers.unsqueeze(layers.unsqueeze(columns, 0), 0)
    beyond = layers.constant([limits.vocabulary], "int32", [1, 1, 1])
    lowest = layers.smallest(layers.select(layers.equal(scores, best), columns, beyond), 2)
    faulty = layers.either(layers.cast(any_broken, "bool"), layers.is_infinite(best))
    return layers.squeeze(layers.select(faulty, layers.constant([NO_TOKEN], "int32", [1, 1, 1]), lowest), 2)


def walk_tree(layers: Layers, ids: Tensor, inputs: Mapping[str, Tensor], most_nodes: int) -> dict[str, Tensor]:
    """The path that the choices lead along, from each row's root."""
    places = layers.unsqueeze(layers.count_up(layers.pick(layers.shape(ids), [1])), 0)  # [1, N + 1]
    nodes = layers.unsqueeze(layers.count_up(layers.pick(layers.shape(inputs["tokens"]), [1])), 0)  # [1, N]
    reached, depths = _reached(layers, _chosen(layers, ids, nodes, inputs), inputs, most_nodes)
    accepted = layers.add(layers.total(layers.cast(reached, "int32"), 1), _number(layers, -1))  # the root counts not
    levels = layers.unsqueeze(layers.add(nodes, _number(layers, 1)), 2)  # [1, N, 1]
    there = layers.both(layers.unsqueeze(reached, 1), layers.equal(layers.unsqueeze(depths, 1), levels))
    node_of_place = layers.unsqueeze(layers.add(places, _number(layers, -1)), 1)
    no_node = layers.constant([NO_NODE], "int32", [1, 1, 1])
    path = layers.squeeze(layers.largest(layers.select(there, node_of_place, no_node), 2), 2)
    last = layers.both(reached, layers.equal(depths, accepted))
    bonus = layers.take_along(ids, layers.largest(layers.select(last, places, _number(layers, 0)), 1), 1)
    return {
        "path": path,
        "accepted": layers.squeeze(accepted, 1),
        "emitted": _emitted(layers, inputs["tokens"], path, accepted, bonus, places),
        "bonus": layers.squeeze(bonus, 1),
    }


class _Chosen(NamedTuple):
    """[B, N] each."""

    flags: Tensor
    """Whether the target chose the node after its parent."""
    above: Tensor
    """The parent's place; the root's for what is no node."""


def _chosen(layers: Layers, ids: Tensor, nodes: Tensor, inputs: Mapping[str, Tensor]) -> _Chosen:
    tokens, parents = inputs["tokens"], inputs["parents"]
    size = layers.unsqueeze(layers.cast(layers.pick(layers.shape(tokens), [1]), "int32"), 0)
    known = layers.both(layers.less(_number(layers, ROOT - 1), parents), layers.less(parents, size))
    real = layers.both(layers.less(nodes, layers.unsqueeze(inputs["counts"], 1)), known)
    above = layers.select(real, layers.add(parents, _number(layers, 1)), _number(layers, 0))
    right = layers.both(real, layers.equal(tokens, layers.take_along(ids, above, 1)))
    siblings = layers.equal(layers.unsqueeze(above, 2), layers.unsqueeze(above, 1))  # [B, N, N]
    rivals = layers.both(siblings, layers.unsqueeze(right, 1))
    first = layers.smallest(layers.select(rivals, layers.unsqueeze(nodes, 1), layers.unsqueeze(size, 1)), 2)
    return _Chosen(layers.equal(layers.squeeze(first, 2), nodes), above)


def _reached(layers: Layers, chosen: _Chosen, inputs: Mapping[str, Tensor], most_nodes: int) -> tuple[Tensor, Tensor]:
    """Of each place, [B, N + 1]: whether all on its way to the root was chosen; and if so, its depth.

    After k steps a place has looked at the 2^k next ones on its way; the root leads to itself.
    """
    root = layers.multiply(layers.unsqueeze(inputs["counts"], 1), _number(layers, 0))
    flags = layers.cast(chosen.flags, "int32")
    above, depths = layers.join([root, chosen.above], 1), layers.join([root, flags], 1)
    ways = layers.join([layers.add(root, _number(layers, 1)), flags], 1)
    for _ in range((most_nodes - 1).bit_length()):
        depths = layers.add(depths, layers.take_along(depths, above, 1))
        ways = layers.multiply(ways, layers.take_along(ways, above, 1))
        above = layers.take_along(above, above, 1)
    at_root = layers.equal(above, _number(layers, 0))
    return layers.both(layers.cast(ways, "bool"), at_root), depths


def _emitted(layers: Layers, tokens: Tensor, path: Tensor, accepted: Tensor, bonus: Tensor, places: Tensor) -> Tensor:
    on_path = layers.select(layers.less(path, _number(layers, 0)), _number(layers, 0), path)
    taken = layers.join([layers.take_along(tokens, on_path, 1), bonus], 1)
    end = layers.select(layers.equal(places, accepted), bonus, _number(layers, NO_NODE))
    return layers.select(layers.less(places, accepted), taken, end)


def _number(layers: Layers, value: int) -> Tensor:
    return layers.constant([value], "int32", [1, 1])
