"""Kernels that read whole rows of logits once: the target's choice, and the best logits of a row.

A row is split among programs, so that a few rows fill a chip: `..._parts` leaves what each split found, and `..._merge`
puts it together. Of the W columns of a row the first V, `vocabulary`, are tokens; the others are never looked at.
"""

from __future__ import annotations

from plugins.contract import LOGITS, Array, KernelSpec

_ROW = ("rows",)
_LOGITS = Array("logits", LOGITS, ("rows", "width"))
_SPLITS = ("rows", "splits")

_PARTS = (
    Array("part_keys", "int64", _SPLITS),
    Array("part_ids", "int32", _SPLITS),
    Array("part_scores", "float32", _SPLITS),
    Array("part_wanted", "float32", _SPLITS),
    Array("part_best", "float32", _SPLITS),
    Array("part_sums", "float32", _SPLITS),
)

CHOOSE_TOKEN_PARTS = KernelSpec(
    name="choose_token_parts",
    module="choose_token",
    inputs=(
        _LOGITS,
        Array("seeds", "int64", _ROW),
        Array("positions", "int32", _ROW),
        Array("choices", "int32", _ROW),
        Array("noisy", "int32", _ROW),
        Array("wanted", "int32", _ROW),
    ),
    scalars=("width", "vocabulary", "lane"),
    outputs=_PARTS,
    grid=_SPLITS,
    constants={"BLOCK": 1024, "SPLIT": 4096},
    derived={"splits": ("width", "SPLIT")},
)

CHOOSE_TOKEN_MERGE = KernelSpec(
    name="choose_token_merge",
    module="choose_token",
    inputs=_PARTS,
    scalars=("splits",),
    outputs=(
        Array("ids", "int32", _ROW),
        Array("logprobs", "float32", _ROW),
        Array("wanted_logprobs", "float32", _ROW),
    ),
    grid=_ROW,
    constants={"BLOCK": 64},
    num_warps=1,
)

MOST_IDS = 2**30
"""Tokens of a vocabulary: int32 has room for a block beyond these."""
MOST = 64
"""How many logits of a row are told, unless another power of two is asked for."""


def top_logits(most: int) -> tuple[KernelSpec, KernelSpec]:
    """The kernels that tell so many logits of a row, a power of two."""
    parts = KernelSpec(
        name="top_logits_parts",
        module="top_logits",
        inputs=(_LOGITS,),
        scalars=("width", "vocabulary"),
        outputs=(
            Array("part_keys", "int64", (*_SPLITS, "MOST")),
            Array("part_best", "float32", _SPLITS),
            Array("part_sums", "float32", _SPLITS),
        ),
        grid=_SPLITS,
        constants={"BLOCK": 2048, "MOST": most},
        derived={"splits": ("width", "BLOCK")},
    )
    merge = KernelSpec(
        name="top_logits_merge",
        module="top_logits",
        inputs=parts.outputs,
        scalars=("splits", "vocabulary"),
        outputs=(Array("top", "float32", ("rows", "ROW")),),
        grid=_ROW,
        constants={"BLOCK": 32, "MOST": most, "ROW": 2 * most + 1},
    )
    return parts, merge


SPECS = (CHOOSE_TOKEN_PARTS, CHOOSE_TOKEN_MERGE, *top_logits(MOST))
