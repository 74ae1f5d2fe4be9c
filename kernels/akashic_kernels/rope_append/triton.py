"""The append kernel: a program takes the runs of tokens of one page that begin among its own tokens, for one KV head.

Invariant: a page and head is written by one program, so its bounds need no atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from akashic_kernels.kv_quant.triton import row_scale, to_int8
from akashic_kernels.rope.triton import pair_offsets, phase_cos_sin


@triton.jit
def rope_append_kernel(
    key,
    value,
    slots,
    k_pages,
    v_pages,
    k_scale,
    v_scale,
    bounds,
    phase_step,
    attention_scale,
    key_stride,
    value_stride,
    token_count,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    ROTARY: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PAGE: tl.constexpr,
    OWN: tl.constexpr,
    BLOCK: tl.constexpr,
    QUANTISED: tl.constexpr,
    BOUNDED: tl.constexpr,
    OUTWARDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Turn, write and bound each run that begins in tokens OWN * program .. + OWN - 1; a run goes on past them.

    With OVERLAP a launch begins before the one before it has ended, and waits for it before it reads anything.
    """
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(1)
    own = tl.program_id(0) * OWN + tl.arange(0, OWN)
    inside = own < token_count
    slot = tl.load(slots + own, mask=inside, other=-1).to(tl.int64)
    before = tl.load(slots + own - 1, mask=inside & (own > 0), other=-1).to(tl.int64)
    leads = (slot >= 0) & ((before < 0) | (before // PAGE != slot // PAGE))
    start = tl.min(tl.where(leads, own, token_count), 0)
    while start < token_count:
        append_run(
            key, value, slots, k_pages, v_pages, k_scale, v_scale, bounds, phase_step, attention_scale,
            key_stride, value_stride, token_count, start, head,
            KV_HEADS, HEAD_DIM, HEAD_BLOCK, ROTARY, INTERLEAVED, PAGE, BLOCK, QUANTISED, BOUNDED, OUTWARDS,
        )  # fmt: skip
        start = tl.min(tl.where(leads & (own > start), own, token_count), 0)


@triton.jit
def append_run(
    key,
    value,
    slots,
    k_pages,
    v_pages,
    k_scale,
    v_scale,
    bounds,
    phase_step,
    attention_scale,
    key_stride,
    value_stride,
    token_count,
    start,
    head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    ROTARY: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    QUANTISED: tl.constexpr,
    BOUNDED: tl.constexpr,
    OUTWARDS: tl.constexpr,
):
    """Write the tokens from `start` on that go to its page; BLOCK is no less than any run."""
    row = tl.arange(0, BLOCK)
    token = start + row
    place = tl.load(slots + token, mask=token < token_count, other=-1).to(tl.int64)
    page = tl.load(slots + start).to(tl.int64) // PAGE
    same = (place >= 0) & (place // PAGE == page)
    live = row < tl.min(tl.where(same, BLOCK, row), 0)
    slot = tl.where(live, place - page * PAGE, 0)
    target = (page * KV_HEADS + head) * PAGE + slot

    pair = tl.arange(0, HEAD_BLOCK // 2)
    first, second = pair_offsets(pair, ROTARY, HEAD_DIM, INTERLEAVED)
    held = pair < HEAD_DIM // 2
    turned = pair < ROTARY // 2
    mask = live[:, None] & held[None, :]
    key_row = (key + token.to(tl.int64) * key_stride + head * HEAD_DIM)[:, None]
    x = tl.load(key_row + first[None, :], mask=mask, other=0.0).to(tl.float32)
    y = tl.load(key_row + second[None, :], mask=mask, other=0.0).to(tl.float32)
    step = tl.load(phase_step + pair, mask=turned, other=0)
    cosine, sine = phase_cos_sin(slot[:, None] * step[None, :])
    cosine = tl.where(turned[None, :], cosine * attention_scale, 1.0)
    sine = tl.where(turned[None, :], sine * attention_scale, 0.0)
    key_first = x * cosine - y * sine
    key_second = x * sine + y * cosine

    dim = tl.arange(0, HEAD_BLOCK)
    value_mask = live[:, None] & (dim < HEAD_DIM)[None, :]
    value_row = (value + token.to(tl.int64) * value_stride + head * HEAD_DIM)[:, None]
    new_value = tl.load(value_row + dim[None, :], mask=value_mask, other=0.0)
    if QUANTISED:
        scale = row_scale(tl.maximum(tl.max(tl.abs(key_first), 1), tl.max(tl.abs(key_second), 1)))
        stored_first = to_int8(key_first, scale[:, None])
        stored_second = to_int8(key_second, scale[:, None])
        key_first = stored_first.to(tl.float32) * scale[:, None]
        key_second = stored_second.to(tl.float32) * scale[:, None]
        new_value = new_value.to(tl.float32)
        value_scale = row_scale(tl.max(tl.abs(new_value), 1))
        stored_value = to_int8(new_value, value_scale[:, None])
        tl.store(k_scale + target, scale, mask=live)
        tl.store(v_scale + target, value_scale, mask=live)
    else:
        kind: tl.constexpr = k_pages.dtype.element_ty
        stored_first = key_first.to(kind)
        stored_second = key_second.to(kind)
        key_first = stored_first.to(tl.float32)
        key_second = stored_second.to(tl.float32)
        stored_value = new_value.to(kind)
    k_row = (k_pages + target * HEAD_DIM)[:, None]
    tl.store(k_row + first[None, :], stored_first, mask=mask)
    tl.store(k_row + second[None, :], stored_second, mask=mask)
    tl.store((v_pages + target * HEAD_DIM)[:, None] + dim[None, :], stored_value, mask=value_mask)
    if BOUNDED:
        low = bounds + (page * KV_HEADS + head) * 2 * HEAD_DIM
        fresh = tl.max(tl.where(live & (slot == 0), 1, 0), 0) == 1
        widen(low, first, key_first, mask, held, fresh, HEAD_DIM, OUTWARDS)
        widen(low, second, key_second, mask, held, fresh, HEAD_DIM, OUTWARDS)


@triton.jit
def widen(low, dim, keys, mask, held, fresh, HEAD_DIM: tl.constexpr, OUTWARDS: tl.constexpr):
    """Let a page's bounds in dimensions `dim` hold `keys` too, or nothing but them if the page is `fresh`."""
    high = low + HEAD_DIM
    kind: tl.constexpr = low.dtype.element_ty
    least = tl.min(tl.where(mask, keys, float("inf")), 0)
    most = tl.max(tl.where(mask, keys, float("-inf")), 0)
    least = (least - tl.abs(least) * OUTWARDS).to(kind).to(tl.float32)
    most = (most + tl.abs(most) * OUTWARDS).to(kind).to(tl.float32)
    old = held & (fresh == 0)
    least = tl.minimum(least, tl.load(low + dim, mask=old, other=float("inf")).to(tl.float32))
    most = tl.maximum(most, tl.load(high + dim, mask=old, other=float("-inf")).to(tl.float32))
    tl.store(low + dim, least.to(kind), mask=held)
    tl.store(high + dim, most.to(kind), mask=held)
