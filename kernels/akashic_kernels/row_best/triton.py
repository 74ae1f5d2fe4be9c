"""The Triton kernel that finds each row's greatest number: programs for parts of a row, the last to arrive tells."""

from __future__ import annotations

import triton
import triton.language as tl

_LEAST = tl.constexpr(-9223372036854775808)


@triton.jit
def row_best_kernel(values, greatest, place, key, arrived, wide, row_stride, BLOCK: tl.constexpr):
    """Join this part's greatest key into the row's; the last part writes the row's result and makes its room ready again."""
    part = tl.program_id(0)
    row = tl.program_id(1)
    index = part * BLOCK + tl.arange(0, BLOCK)
    exists = index < wide
    of_row = values + row.to(tl.int64) * row_stride
    value = tl.load(of_row + index, mask=exists, other=0.0).to(tl.float32)
    bits = (value + 0.0).to(tl.int32, bitcast=True)  # adding zero makes -0.0 the same key as 0.0
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    ordered = tl.where(is_nan, 2147483647, bits ^ ((bits >> 31) & 0x7FFFFFFF))
    # Of equal values the first place has the greatest key.
    packed = (ordered.to(tl.int64) << 32) | (2147483647 - index).to(tl.int64)
    best = tl.max(tl.where(exists, packed, _LEAST), 0)
    tl.atomic_max(key + row, best, sem="relaxed")
    before = tl.atomic_add(arrived + row, 1, sem="acq_rel", scope="gpu")
    if before == tl.num_programs(0) - 1:
        least = tl.full((), _LEAST, tl.int64)
        all_best = tl.atomic_max(key + row, least, sem="relaxed")
        where = 2147483647 - (all_best & 0xFFFFFFFF).to(tl.int32)
        tl.store(place + row, where)
        tl.store(greatest + row, tl.load(of_row + where).to(tl.float32))
        tl.store(key + row, least)
        tl.store(arrived + row, 0)
