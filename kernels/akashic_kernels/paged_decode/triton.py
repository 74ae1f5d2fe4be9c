"""The Triton kernel of decode attention for many views: tiles on tensor cores, split, merged by the last to arrive."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from akashic_kernels.rope.triton import pair_of, turn_coefficients

# Stands for minus infinity where a difference of two of them must not be NaN.
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def _turn(q_own, q_pair, delta, step, second, turned_dim, attention_scale, PRECISE: tl.constexpr, TYPE: tl.constexpr):
    """Give the query turned by `delta` as two parts of which the second holds what rounding the first lost."""
    c, s = turn_coefficients(delta, step, second, turned_dim, attention_scale)
    turned = q_own * c[:, None] + q_pair * s[:, None]
    if PRECISE:
        return turned, turned
    high = turned.to(TYPE)
    return high, (turned - high.to(tl.float32)).to(TYPE)


@triton.jit
def _dot_keys(keys, high, low, PRECISE: tl.constexpr):
    """Give keys . query, [tile, group]."""
    if PRECISE:
        return tl.dot(keys.to(tl.float32), high, input_precision="ieee")
    return tl.dot(keys, low, tl.dot(keys, high))


@triton.jit
def load_view(view_list, index, exists):
    """Give page, offset, length and base of a view, zeros if it doesn't exist."""
    at = view_list + index * 4
    return (
        tl.load(at, mask=exists, other=0),
        tl.load(at + 1, mask=exists, other=0),
        tl.load(at + 2, mask=exists, other=0),
        tl.load(at + 3, mask=exists, other=0),
    )


@triton.jit
def _merge_splits(
    partial,
    partial_lse,
    splits,
    GROUP: tl.constexpr,
    MERGE_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Give the weighted sum [HEAD_BLOCK / 4, MERGE_ROWS, 4] of all splits and its log2 sum [HEAD_BLOCK / 4, MERGE_ROWS].

    A thread adds up its own four elements of all splits, CHUNK loads at a time, and exchanges nothing. The arrival acquired
    what the splits wrote, so plain loads see it; the compiler would wait for each load past the L1 before the next.
    """
    four = tl.arange(0, HEAD_BLOCK // 4)[:, None]
    row = tl.arange(0, MERGE_ROWS)[None, :]
    top = tl.full([HEAD_BLOCK // 4, MERGE_ROWS], LOWEST, tl.float32)
    total = tl.zeros_like(top)
    acc = tl.zeros([HEAD_BLOCK // 4, MERGE_ROWS, 4], tl.float32)
    dim = (4 * four)[:, :, None, None] + tl.arange(0, 4)[None, None, None, :]
    # Splits stand in a middle dimension, which a thread then holds whole: Triton 3.6 gives the others to its threads.
    for first in range(0, splits, CHUNK):
        split = first + tl.arange(0, CHUNK)[None, None, :]
        place = split * GROUP + row[:, :, None]
        real = (split < splits) & (row < GROUP)[:, :, None] & (four < HEAD_BLOCK)[:, :, None]
        inside = real[:, :, :, None] & (dim < HEAD_DIM)
        lse = tl.load(partial_lse + place * (HEAD_BLOCK // 2) + 2 * four[:, :, None], mask=real, other=LOWEST)
        part = tl.load(partial + place[:, :, :, None] * HEAD_DIM + dim, mask=inside, other=0.0)
        new_top = tl.maximum(top, tl.max(lse, 2))
        weight = tl.where(real, tl.exp2(lse - new_top[:, :, None]), 0.0)
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weight, 2)
        acc = acc * shrink[:, :, None] + tl.sum(part * weight[:, :, :, None], 2)
        top = new_top
    # A row that sees nothing has every split at LOWEST, so weights of one and parts of zero.
    total = tl.where(row < GROUP, total, 1.0)
    return acc / total[:, :, None], tl.where(top > LOWEST, top + tl.log2(total), LOWEST)


@triton.jit
def finish(
    acc,
    top,
    total,
    out,
    out_lse,
    partial,
    partial_lse,
    arrived,
    splits,
    split,
    list_index,
    GROUP: tl.constexpr,
    MERGE_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    SPLITS_BLOCK: tl.constexpr,
    MERGE_CHUNK: tl.constexpr,
):
    """Write a split's sums `acc` [rows, HEAD_BLOCK], `top` and `total` [rows]; the last to arrive merges all splits."""
    g = tl.arange(0, acc.shape[0])
    d = tl.arange(0, HEAD_BLOCK)
    ok = (g[:, None] < GROUP) & (d[None, :] < HEAD_DIM)
    seen = total > 0
    acc = acc / tl.where(seen, total, 1.0)[:, None]
    lse = tl.where(seen, top + tl.log2(tl.where(seen, total, 1.0)), LOWEST)
    out_row = list_index.to(tl.int64) * GROUP
    if SPLITS_BLOCK == 1:
        tl.store(out + (out_row + g[:, None]) * HEAD_DIM + d[None, :], acc.to(out.dtype.element_ty), mask=ok)
        natural = tl.where(lse > LOWEST, lse * 0.6931471805599453, -float("inf"))
        tl.store(out_lse + out_row + g, natural, mask=g < GROUP)
    else:
        FOURS: tl.constexpr = HEAD_BLOCK // 4
        four = tl.arange(0, FOURS)[None, :]
        first_row = list_index.to(tl.int64) * splits * GROUP
        split_row = first_row + split * GROUP
        tl.store(partial + (split_row + g[:, None]) * HEAD_DIM + d[None, :], acc, mask=ok)
        # Once for each four elements, as whoever merges those reads it beside them; and at every second place only, as Triton
        # would else load four at a time and hand them round.
        spread = lse[:, None] + tl.zeros([1, FOURS], tl.float32)
        tl.store(
            partial_lse + (split_row + g[:, None]) * (2 * FOURS) + 2 * four,
            spread,
            mask=(g[:, None] < GROUP) & (four < FOURS),
        )
        # All threads' stores come before the arrival, and the arrival of all others before the reads of the last.
        tl.debug_barrier()
        before = tl.atomic_add(arrived + list_index, 1, sem="acq_rel", scope="gpu")
        if before == splits - 1:
            tl.debug_barrier()
            merged, merged_lse = _merge_splits(
                partial + first_row * HEAD_DIM,
                partial_lse + first_row * (2 * FOURS),
                splits,
                GROUP,
                MERGE_ROWS,
                HEAD_DIM,
                HEAD_BLOCK,
                MERGE_CHUNK,
            )
            quad = tl.arange(0, FOURS)[:, None]
            row = tl.arange(0, MERGE_ROWS)[None, :]
            dim = (4 * quad)[:, :, None] + tl.arange(0, 4)[None, None, :]
            to = out + (out_row + row[:, :, None]) * HEAD_DIM + dim
            tl.store(to, merged.to(out.dtype.element_ty), mask=(row[:, :, None] < GROUP) & (dim < HEAD_DIM))
            natural = tl.where(merged_lse > LOWEST, merged_lse * 0.6931471805599453, -float("inf"))
            tl.store(out_lse + out_row + row + quad * 0, natural, mask=(row < GROUP) & (quad == 0))
            # Ready for the next launch, and for a replay of a graph.
            tl.store(arrived + list_index, 0)


@triton.jit(do_not_specialize=["splits", "views_per_list"])
def paged_decode_kernel(
    query,
    k_pages,
    v_pages,
    k_scale,
    v_scale,
    views,
    view_start,
    query_position,
    phase_step,
    out,
    out_lse,
    partial,
    partial_lse,
    arrived,
    query_stride_batch,
    query_stride_head,
    views_per_list,
    splits,
    score_scale,
    attention_scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    MERGE_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    ROTARY: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS_BLOCK: tl.constexpr,
    MERGE_CHUNK: tl.constexpr,
    SELECTED: tl.constexpr,
    QUANTISED: tl.constexpr,
    PRECISE: tl.constexpr,
    STAGES: tl.constexpr,
    AFTER_CHOICE: tl.constexpr,
):
    """Attend with the queries of one row and KV head to one split of its views; `view_start` holds counts if SELECTED."""
    split = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.program_id(2)
    list_index = row * KV_HEADS + head
    position = tl.load(query_position + row)

    g = tl.arange(0, GROUP_BLOCK)
    d = tl.arange(0, HEAD_BLOCK)
    in_tile = tl.arange(0, TILE)
    inside = d < HEAD_DIM
    partner, pair, second = pair_of(d, ROTARY, INTERLEAVED)
    turned_dim = d < ROTARY
    step = tl.load(phase_step + pair)
    # Heads stand in columns: keys and values are then the left operands, which the tensor cores read where they lie.
    q_at = query + row.to(tl.int64) * query_stride_batch + (head * GROUP + g[None, :]) * query_stride_head
    q_ok = (g[None, :] < GROUP) & inside[:, None]
    q_own = tl.load(q_at + d[:, None], mask=q_ok, other=0.0).to(tl.float32)
    q_pair = tl.load(q_at + partner[:, None], mask=q_ok, other=0.0).to(tl.float32)

    if AFTER_CHOICE:
        # What stands above doesn't depend on the launch before this one, `block_select`; the lists do.
        gdc_wait()
    if SELECTED:
        # Cut by the list's room, not by its count: then a view is read at the same time as the count.
        count = tl.load(view_start + list_index)
        room = views_per_list
        view_list = views + list_index.to(tl.int64) * views_per_list * 4
    else:
        first_view = tl.load(view_start + row)
        count = tl.load(view_start + row + 1) - first_view
        room = count
        view_list = views + first_view.to(tl.int64) * 4

    top = tl.full([GROUP_BLOCK], LOWEST, tl.float32)
    # Summed over the tile's slots at the end only: a sum across warps in each step would cost a barrier.
    totals = tl.zeros([TILE, GROUP_BLOCK], tl.float32)
    acc = tl.zeros([GROUP_BLOCK, HEAD_BLOCK], tl.float32)
    TILES: tl.constexpr = PAGE // TILE
    tile = in_tile[:, None] * HEAD_DIM + d[None, :]
    units = room * TILES
    first, last = units * split // splits, units * (split + 1) // splits
    # A view is read and the query turned for it one step ahead: no tile's address or product waits for a load or an
    # angle of its own step.
    page, offset, length, base = load_view(view_list, first // TILES, first < last)
    TYPE: tl.constexpr = query.dtype.element_ty
    high, low = _turn(q_own, q_pair, position - base, step, second, turned_dim, attention_scale, PRECISE, TYPE)
    last = tl.minimum(last, count * TILES)
    for i in tl.range(first, last, num_stages=STAGES):
        next_view = load_view(view_list, (i + 1) // TILES, i + 1 < last)
        first_slot = (i % TILES) * TILE
        slot = first_slot + in_tile
        visible = (slot >= offset) & (slot < offset + length)
        start = ((page.to(tl.int64) * KV_HEADS + head) * PAGE + first_slot) * HEAD_DIM
        # Slots that are not visible may hold anything, NaN too.
        loaded = visible[:, None] & inside[None, :]
        keys = tl.load(k_pages + start + tile, mask=loaded, other=0.0)
        values = tl.load(v_pages + start + tile, mask=loaded, other=0.0)
        if QUANTISED:
            scale_at = (page.to(tl.int64) * KV_HEADS + head) * PAGE + slot
            keys = keys.to(TYPE)
            values = values.to(TYPE)
            x = _dot_keys(keys, high, low, PRECISE) * score_scale
            x *= tl.load(k_scale + scale_at, mask=visible, other=0.0)[:, None]
        else:
            x = _dot_keys(keys, high, low, PRECISE) * score_scale
        x = tl.where(visible[:, None], x, -float("inf"))
        new_top = tl.maximum(top, tl.max(x, 0))
        p = tl.exp2(x - new_top[None, :])
        shrink = tl.exp2(top - new_top)
        totals = totals * shrink[None, :] + p
        top = new_top
        if QUANTISED:
            p *= tl.load(v_scale + scale_at, mask=visible, other=0.0)[:, None]
        acc *= shrink[:, None]
        if PRECISE:
            acc = tl.dot(tl.trans(p), values.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(tl.trans(p).to(values.dtype), values, acc)
        page, offset, length, base = next_view
        if ((i + 1) % TILES == 0) & (i + 1 < last):
            high, low = _turn(q_own, q_pair, position - base, step, second, turned_dim, attention_scale, PRECISE, TYPE)

    finish(
        acc,
        top,
        tl.sum(totals, 0),
        out,
        out_lse,
        partial,
        partial_lse,
        arrived,
        splits,
        split,
        list_index,
        GROUP,
        MERGE_ROWS,
        HEAD_DIM,
        HEAD_BLOCK,
        SPLITS_BLOCK,
        MERGE_CHUNK,
    )
