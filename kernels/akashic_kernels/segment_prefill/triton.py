"""The segment prefill kernel: one program a tile of queries and a key head, a loop over the tile's views.

A program holds `BLOCK_M` rows: the queries of up to BLOCK_M // GROUP neighbouring positions, for each query head of one
key head. The rows stay turned to their own positions in fp32; a view turns them all by one more angle, that of its base,
so a view costs two vectors of cosines and not one for each query. The caller owns validation.
"""

from __future__ import annotations

import triton
import triton.language as tl

from akashic_kernels.rope.triton import pair_offsets, phase_cos_sin


@triton.jit
def turned_queries(
    query_row,
    position,
    live,
    pair,
    first,
    second,
    phase_step,
    attention_scale,
    HEAD_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """Load both halves of a tile's query rows in fp32, turned to their positions."""
    inside = pair < HEAD_DIM // 2
    turned = pair < ROTARY // 2
    read = live[:, None] & inside[None, :]
    x = tl.load(query_row[:, None] + first[None, :], mask=read, other=0.0).to(tl.float32)
    y = tl.load(query_row[:, None] + second[None, :], mask=read, other=0.0).to(tl.float32)
    step = tl.load(phase_step + pair, mask=turned, other=0)
    cosine, sine = phase_cos_sin(position.to(tl.int64)[:, None] * step[None, :])
    cosine = tl.where(turned[None, :], cosine * attention_scale, 1.0)
    sine = tl.where(turned[None, :], sine * attention_scale, 0.0)
    return x * cosine - y * sine, x * sine + y * cosine


@triton.jit
def segment_prefill_kernel(
    query,
    k_pages,
    v_pages,
    k_scale,
    v_scale,
    out,
    partial_out,
    partial_lse,
    tiles,
    views,
    view_phase,
    phase_step,
    attention_scale,
    score_scale,
    query_stride,
    out_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    PAIR_BLOCK: tl.constexpr,
    ROTARY: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPAN: tl.constexpr,
    JOINED: tl.constexpr,
    QUANTISED: tl.constexpr,
):
    """Write the attention of one tile of queries; see the README for the mathematics."""
    head = tl.program_id(1)
    tile = tiles + tl.program_id(0) * 8
    first_query = tl.load(tile).to(tl.int64)
    count = tl.load(tile + 1)
    view_start = tl.load(tile + 2)
    view_stop = tl.load(tile + 3)
    limit = tl.load(tile + 4)

    seen = tl.load(tile + 5)
    partial = tl.load(tile + 6)
    position = tl.load(tile + 7)

    row = tl.arange(0, BLOCK_M)
    step = row // GROUP
    # The last rows of a tile are spare when GROUP doesn't divide BLOCK_M.
    live = (step < count) & (step < BLOCK_M // GROUP)
    pair = tl.arange(0, PAIR_BLOCK)
    inside = pair < HEAD_DIM // 2
    rotated = pair < ROTARY // 2
    first, second = pair_offsets(pair, ROTARY, HEAD_DIM, INTERLEAVED)
    kind: tl.constexpr = query.dtype.element_ty
    head_row = (head * GROUP + row % GROUP) * HEAD_DIM
    query_row = query + (first_query + step) * query_stride + head_row
    query_first, query_second = turned_queries(
        query_row, position + step, live, pair, first, second, phase_step, attention_scale, HEAD_DIM, ROTARY
    )

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weighted = tl.zeros([BLOCK_M, HEAD_BLOCK], tl.float32)
    column = tl.arange(0, BLOCK_N)
    value = tl.arange(0, HEAD_BLOCK)
    # A view is walked in PAGE // SPAN steps, which bound the keys and values that wait in shared memory.
    for walk in range(view_start * (PAGE // SPAN), view_stop * (PAGE // SPAN)):
        i = walk // (PAGE // SPAN)
        begin = (walk % (PAGE // SPAN)) * SPAN
        page = tl.load(views + i * 4).to(tl.int64)
        offset = tl.load(views + i * 4 + 1)
        length = tl.load(views + i * 4 + 2)
        angle = view_phase + i * ROTARY + pair
        c = tl.load(angle, mask=rotated, other=1.0)[None, :]
        s = tl.load(angle + ROTARY // 2, mask=rotated, other=0.0)[None, :]
        turned_first = (query_first * c + query_second * s).to(kind)
        turned_second = (query_second * c - query_first * s).to(kind)
        if JOINED:
            halves = tl.permute(tl.join(turned_first, turned_second), (0, 2, 1))
            turned = tl.reshape(halves, (BLOCK_M, HEAD_BLOCK))
        base = (page * KV_HEADS + head) * PAGE
        whole = (length == PAGE) & (seen + PAGE <= limit)
        for part in tl.static_range(SPAN // BLOCK_N):
            slot = begin + part * BLOCK_N + column
            k_row = k_pages + (base + slot[None, :]) * HEAD_DIM
            if JOINED:
                keys = tl.load(k_row + value[:, None])
                score = tl.dot(turned, keys.to(kind), input_precision="ieee")
            else:
                keys_first = tl.load(k_row + first[:, None], mask=inside[:, None], other=0.0)
                keys_second = tl.load(k_row + second[:, None], mask=inside[:, None], other=0.0)
                score = tl.dot(turned_first, keys_first.to(kind), input_precision="ieee")
                score = tl.dot(turned_second, keys_second.to(kind), score, input_precision="ieee")
            if QUANTISED:
                score *= tl.load(k_scale + base + slot)[None, :]
            score *= score_scale
            visible = (slot >= offset) & (slot < offset + length)
            if not whole:
                order = seen + slot - offset
                score = tl.where(visible[None, :] & (order[None, :] < limit + step[:, None]), score, float("-inf"))
            new_peak = tl.maximum(peak, tl.max(score, 1))
            # A row that has seen nothing yet keeps -inf; zero in its place keeps exp2 from making NaN of it.
            shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            weight = tl.exp2(score - shift[:, None])
            fade = tl.exp2(peak - shift)
            total = total * fade + tl.sum(weight, 1)
            v_row = v_pages + (base + slot[:, None]) * HEAD_DIM
            # Slots that nothing sees may hold anything, NaN too, which a weight of zero would not undo.
            read_value = visible[:, None] & (value[None, :] < HEAD_DIM)
            values = tl.load(v_row + value[None, :], mask=read_value, other=0.0)
            if QUANTISED:
                weight *= tl.load(v_scale + base + slot, mask=visible, other=0.0)[None, :]
            faded = weighted * fade[:, None]
            weighted = tl.dot(weight.to(kind), values.to(kind), faded, input_precision="ieee")
            peak = new_peak
        seen += tl.where(begin + SPAN == PAGE, length, 0)

    divisor = tl.where(total > 0.0, total, 1.0)
    answer = weighted / divisor[:, None]
    if partial < 0:
        out_row = out + (first_query + step) * out_stride + head_row
        write = live[:, None] & (value < HEAD_DIM)[None, :]
        tl.store(out_row[:, None] + value[None, :], answer.to(kind), mask=write)
    else:
        part_row = (partial.to(tl.int64) * KV_HEADS + head) * BLOCK_M + row
        tl.store(partial_lse + part_row, tl.where(total > 0.0, peak + tl.log2(divisor), float("-inf")))
        tl.store(partial_out + part_row[:, None] * HEAD_BLOCK + value[None, :], answer)


@triton.jit
def merge_kernel(
    partial_out,
    partial_lse,
    out,
    merges,
    out_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Join a split tile's partial results in the order of its views: one program `ROWS` rows of one key head."""
    head = tl.program_id(1)
    merge = merges + tl.program_id(0) * 4
    first_query = tl.load(merge).to(tl.int64)
    count = tl.load(merge + 1)
    start = tl.load(merge + 2).to(tl.int64)
    pieces = tl.load(merge + 3)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    value = tl.arange(0, HEAD_BLOCK)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    joined = tl.zeros([ROWS, HEAD_BLOCK], tl.float32)
    for i in range(pieces):
        part_row = ((start + i) * KV_HEADS + head) * BLOCK_M + row
        lse = tl.load(partial_lse + part_row)
        new_peak = tl.maximum(peak, lse)
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        fade = tl.exp2(peak - shift)
        weight = tl.exp2(lse - shift)
        total = total * fade + weight
        part = tl.load(partial_out + part_row[:, None] * HEAD_BLOCK + value[None, :])
        joined = joined * fade[:, None] + part * weight[:, None]
        peak = new_peak
    step = row // GROUP
    live = (step < count) & (step < BLOCK_M // GROUP)
    out_row = out + (first_query + step) * out_stride + (head * GROUP + row % GROUP) * HEAD_DIM
    answer = joined / tl.where(total > 0.0, total, 1.0)[:, None]
    write = live[:, None] & (value < HEAD_DIM)[None, :]
    tl.store(out_row[:, None] + value[None, :], answer.to(out.dtype.element_ty), mask=write)
