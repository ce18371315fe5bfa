"""What the kernels that verify drafts take and give; importable without Triton.

Tokens, nodes and counts are int32. The places of a row are its root and its nodes, so one more than nodes. Of the W
columns of scores the first V, `vocabulary`, are tokens.
"""

from __future__ import annotations

from plugins.contract import LOGITS, Array, KernelSpec

MOST_NODES = 64
"""What a row may draft: a program holds all its nodes at once."""

_TOKENS = Array("tokens", "int32", ("rows", "nodes"))
_COUNTS = Array("counts", "int32", ("rows",))
_TARGET = Array("target", LOGITS, ("rows", "places", "width"))
_DRAFT = Array("draft", LOGITS, ("rows", "nodes", "width"))
_CERTAIN = Array("certain", "int32", ("rows",))

WALK_TREE = KernelSpec(
    name="walk_tree",
    module="tree",
    inputs=(Array("ids", "int32", ("rows", "places")), _TOKENS, Array("parents", "int32", ("rows", "nodes")), _COUNTS),
    scalars=("nodes",),
    outputs=(
        Array("path", "int32", ("rows", "nodes")),
        Array("accepted", "int32", ("rows",)),
        Array("emitted", "int32", ("rows", "places")),
        Array("bonus", "int32", ("rows",)),
    ),
    grid=("rows",),
    constants={"NODES": MOST_NODES},
    num_warps=1,
)
"""From the target's choices to what is emitted."""

_PARTS = ("rows", "nodes", "splits")
_STATISTICS = (
    Array("target_top", "float32", _PARTS),
    Array("target_sum", "float32", _PARTS),
    Array("draft_top", "float32", _PARTS),
    Array("draft_sum", "float32", _PARTS),
)
_ENDS = (
    Array("accepted", "int32", ("rows",)),
    *(Array(name, "float32", ("rows",)) for name in ("target_best", "target_mass", "draft_best", "draft_mass")),
)
_DRAWN = (
    Array("residual_score", "int64", ("rows", "splits")),
    Array("residual_token", "int32", ("rows", "splits")),
    Array("target_score", "int64", ("rows", "splits")),
    Array("target_token", "int32", ("rows", "splits")),
)

CHAIN_STATISTICS = KernelSpec(
    name="chain_statistics",
    module="chain",
    inputs=(_TARGET, _DRAFT, _COUNTS, _CERTAIN),
    scalars=("nodes", "width", "vocabulary"),
    outputs=_STATISTICS,
    grid=("splits", "nodes", "rows"),
    constants={"BLOCK": 2048},
    derived={"splits": ("width", "BLOCK")},
)
CHAIN_ACCEPTANCE = KernelSpec(
    name="chain_acceptance",
    module="chain",
    inputs=(
        *(_TARGET, _DRAFT, _TOKENS, _COUNTS, _CERTAIN),
        Array("uniforms", "float32", ("rows", "nodes")),
        *_STATISTICS,
    ),
    scalars=("nodes", "width", "splits"),
    outputs=_ENDS,
    grid=("rows",),
    constants={"NODES": MOST_NODES, "PARTS": 32},
)
CHAIN_DRAW = KernelSpec(
    name="chain_draw",
    module="chain",
    inputs=(
        *(_TARGET, _DRAFT, _TOKENS, _COUNTS, _CERTAIN),
        Array("seeds", "int64", ("rows",)),
        Array("positions", "int32", ("rows",)),
        Array("choices", "int32", ("rows",)),
        *_ENDS,
    ),
    scalars=("nodes", "width", "vocabulary"),
    outputs=_DRAWN,
    grid=("splits", "rows"),
    constants={"BLOCK": 1024},
    derived={"splits": ("width", "BLOCK")},
)
CHAIN_FOLLOW = KernelSpec(
    name="chain_follow",
    module="chain",
    inputs=_DRAWN,
    scalars=("splits",),
    outputs=(Array("token", "int32", ("rows",)),),
    grid=("rows",),
    constants={"PARTS": 256},
)
CHAIN_REJECTION = (CHAIN_STATISTICS, CHAIN_ACCEPTANCE, CHAIN_DRAW, CHAIN_FOLLOW)
"""Rejection sampling along chains, in the order of launches."""

SPECS = (WALK_TREE, *CHAIN_REJECTION)
