"""What the kernels of `sample_kernels` take and give."""

from __future__ import annotations

from plugins.contract import LOGITS, Array, KernelSpec

ROW_PARTS = KernelSpec(
    name="row_parts",
    module="sample_kernels",
    inputs=(Array("logits", LOGITS, ("rows", "vocabulary")), Array("bias", "float32", ("rows",))),
    scalars=("vocabulary", "lowest"),
    outputs=(
        Array("best", "float32", ("rows", "parts")),
        Array("ids", "int32", ("rows", "parts")),
        Array("copies", LOGITS, ("rows", "BLOCK")),
    ),
    grid=("rows", "parts"),
    constants={"BLOCK": 256},
    derived={"parts": ("vocabulary", "BLOCK")},
    num_warps=2,
)
"""The best id of each part of a row, not below `lowest`, and the row's first values."""
