"""Small kernels, for tests of what compiles and registers kernels; `sample_specs` says what they take."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_parts(logits, bias, vocabulary, lowest, best, ids, copies, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    inside = (column < vocabulary) & (column >= lowest)
    values = tl.load(logits + row.to(tl.int64) * vocabulary + column, mask=inside, other=float("-inf"))
    wide = values.to(tl.float32) * 0.5 + tl.load(bias + row)
    place = row.to(tl.int64) * tl.num_programs(1) + part
    tl.store(best + place, tl.max(wide, 0))
    tl.store(ids + place, (part * BLOCK + tl.argmax(wide, 0)).to(tl.int32))
    tl.store(copies + row * BLOCK + tl.arange(0, BLOCK), values, mask=part == 0)
