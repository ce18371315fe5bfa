"""The walk down a draft's tree. It follows the rule of `trtspec.decoding.verify.walk_tree`, which is its oracle."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def walk_tree(ids, tokens, parents, counts, nodes, path, accepted, emitted, bonus, NODES: tl.constexpr):
    """One program a row: `ids` is [B, N + 1], `tokens` and `parents` [B, N], N = `nodes`, at most NODES.

    The tree lies in registers; each step reads one id more. Path and emitted tokens grow in registers too and are
    stored once, so that no two threads store to one place.
    """
    row = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, NODES)
    inside = node < nodes
    real = inside & (node < tl.load(counts + row))
    token = tl.load(tokens + row * nodes + node, mask=real, other=-1)
    parent = tl.load(parents + row * nodes + node, mask=real, other=-1)
    after = ids + row * (nodes + 1) + 1  # what the target chose after node i; after the root, -1
    steps = tl.full((NODES,), -1, tl.int32)
    taken = tl.full((NODES,), -1, tl.int32)
    wanted = tl.load(after - 1)
    depth = 0
    here = tl.min(tl.where(real & (parent == -1) & (token == wanted), node, NODES), axis=0)
    while (here < NODES) & (depth < nodes):
        steps = tl.where(node == depth, here, steps)
        taken = tl.where(node == depth, wanted, taken)
        depth += 1
        wanted = tl.load(after + here)
        here = tl.min(tl.where(real & (parent == here) & (token == wanted), node, NODES), axis=0)
    taken = tl.where(node == depth, wanted, taken)
    tl.store(path + row * nodes + node, steps, mask=inside)
    tl.store(accepted + row, depth)
    tl.store(emitted + row * (nodes + 1) + node, taken, mask=inside)
    tl.store(emitted + row * (nodes + 1) + nodes, tl.where(depth == nodes, wanted, -1))
    tl.store(bonus + row, wanted)
