"""The Triton kernel that scores views and chooses the best, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from akashic_kernels.rope.triton import phase_cos_sin

_LEAST = tl.constexpr(-2147483648)


@triton.jit
def _cos_sin(phase, HARDWARE: tl.constexpr):
    """Give cosine and sine of a fraction of a turn; the GPU's own (2^-20.9 off at most) are enough to rank views."""
    if HARDWARE:
        angle = (phase >> 32).to(tl.int32).to(tl.float32) * 1.4629180792671596e-09  # 2 pi / 2^32
        cos = tl.inline_asm_elementwise("cos.approx.f32 $0, $1;", "=f,f", [angle], tl.float32, is_pure=True, pack=1)
        sin = tl.inline_asm_elementwise("sin.approx.f32 $0, $1;", "=f,f", [angle], tl.float32, is_pure=True, pack=1)
        return cos, sin
    return phase_cos_sin(phase)


@triton.jit
def _middle_and_reach(at, HEAD_DIM: tl.constexpr, loaded):
    """Give the middle of the bounds at `at` and how far they reach from it."""
    low = tl.load(at, mask=loaded, other=0.0).to(tl.float32)
    high = tl.load(at + HEAD_DIM, mask=loaded, other=0.0).to(tl.float32)
    return (low + high) * 0.5, (high - low) * 0.5


@triton.jit
def _score_views(
    query,
    bounds,
    view_list,
    position,
    phase_step,
    query_stride_head,
    attention_scale,
    head,
    index,
    count,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAIRS_BLOCK: tl.constexpr,
    ROTARY: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HARDWARE: tl.constexpr,
):
    """Give the scores of the views `index` of one row for one KV head."""
    exists = index < count
    page = tl.load(view_list + index * 4, mask=exists, other=0)
    base = tl.load(view_list + index * 4 + 3, mask=exists, other=0)
    # Dimensions go in pairs, each turned by one angle; those behind the rotary part in pairs of neighbours, unturned.
    HALF: tl.constexpr = ROTARY // 2
    pair = tl.arange(0, PAIRS_BLOCK)
    turned_pair = pair < HALF
    has_pair = pair < HEAD_DIM // 2
    # Offsets without a choice in them are seen to be in order, and so are loaded 16 bytes at a time.
    if INTERLEAVED:
        first = 2 * pair
        second = first + 1
    elif ROTARY == HEAD_DIM:
        first = pair
        second = pair + HALF
    else:
        first = tl.where(turned_pair, pair, 2 * pair)
        second = tl.where(turned_pair, pair + HALF, 2 * pair + 1)
    loaded = exists[:, None] & has_pair[None, :]
    at = bounds + (page.to(tl.int64) * KV_HEADS + head)[:, None] * (2 * HEAD_DIM)
    middle1, reach1 = _middle_and_reach(at + first[None, :], HEAD_DIM, loaded)
    middle2, reach2 = _middle_and_reach(at + second[None, :], HEAD_DIM, loaded)
    step = tl.load(phase_step + pair, mask=turned_pair, other=0)
    cos, sin = _cos_sin((position - base).to(tl.int64)[:, None] * step[None, :], HARDWARE)
    if ROTARY < HEAD_DIM:
        cos = tl.where(turned_pair[None, :], cos * attention_scale, 1.0)
        sin = tl.where(turned_pair[None, :], sin * attention_scale, 0.0)
    else:
        cos *= attention_scale
        sin *= attention_scale
    best = tl.full([index.shape[0]], -float("inf"), tl.float32)
    for g in tl.static_range(GROUP):
        q_at = query + (head * GROUP + g) * query_stride_head
        q1 = tl.load(q_at + first, mask=has_pair, other=0.0).to(tl.float32)[None, :]
        q2 = tl.load(q_at + second, mask=has_pair, other=0.0).to(tl.float32)[None, :]
        r1 = q1 * cos - q2 * sin
        r2 = q1 * sin + q2 * cos
        # max(r low, r high) = r middle + |r| reach
        bound = tl.sum(r1 * middle1 + tl.abs(r1) * reach1 + r2 * middle2 + tl.abs(r2) * reach2, 1)
        best = tl.maximum(best, bound, propagate_nan=tl.PropagateNan.ALL)
    return best


@triton.jit
def _least_greatest_sum(least, greatest, number, other_least, other_greatest, other_number):
    """Join two parts' least and greatest key and their numbers of views."""
    return tl.minimum(least, other_least), tl.maximum(greatest, other_greatest), number + other_number


@triton.jit
def _threshold(key, top_k, eligible, forced):
    """Give T, how many eligible keys reach it, how many are wanted, and how long the list will be.

    T is one that exactly the wanted number reaches, or, among equal keys, the greatest that at least so many reach.
    """
    # Two numbers in halves of one, here and below: the GPU sums 32 bits of a warp in one instruction, and a row has at most
    # 2^15 views (`VIEWS_MOST`).
    low, high, numbers = tl.reduce(
        (
            tl.where(eligible, key, 2147483647),
            tl.where(eligible, key, _LEAST),
            eligible.to(tl.int32) + (forced.to(tl.int32) << 16),
        ),
        0,
        _least_greatest_sum,
    )
    reached = numbers & 0xFFFF
    wanted = tl.minimum(top_k, reached)
    total = wanted + ((numbers >> 16) & 0xFFFF)
    # Unsigned, a range of keys fits 32 bits, in which thirds cost little.
    low = (low ^ _LEAST).to(tl.uint32, bitcast=True)
    high = (high ^ _LEAST).to(tl.uint32, bitcast=True) + 1
    unsigned = (key ^ _LEAST).to(tl.uint32, bitcast=True)
    # Each step counts against two thresholds at once: a count of the whole block costs more than comparing.
    while (high - low > 1) & (reached != wanted):
        first = low + (high - low) // 3
        second = high - (high - low + 2) // 3
        reaches = (unsigned >= first).to(tl.int32) + ((unsigned >= second).to(tl.int32) << 16)
        counts = tl.sum(tl.where(eligible, reaches, 0), 0)
        of_first, of_second = counts & 0xFFFF, (counts >> 16) & 0xFFFF
        up1, up2 = of_first >= wanted, of_second >= wanted
        high = tl.where(up2, high, tl.where(up1, second, first))
        low = tl.where(up2, second, tl.where(up1, first, low))
        reached = tl.where(up2, of_second, tl.where(up1, of_first, reached))
    return low.to(tl.int32, bitcast=True) ^ _LEAST, reached, wanted, total


@triton.jit
def _ranks(chosen, VIEWS_BLOCK: tl.constexpr):
    """Count for each view the chosen ones up to it.

    In words of 32, which a warp counts by itself; then each word's are added to all after it. A scan of the whole block joins
    64 parts one after another.
    """
    # Of one word, and of more pairs of words than are worth comparing, the whole is scanned.
    if (VIEWS_BLOCK < 64) or (VIEWS_BLOCK > 4096):
        ranks = tl.cumsum(chosen.to(tl.int32), 0)
    else:
        WORDS: tl.constexpr = VIEWS_BLOCK // 32
        bits = tl.reshape(chosen.to(tl.int32), [WORDS, 32])
        word = tl.arange(0, WORDS)
        of_word = tl.sum(bits, 1)
        before = tl.sum(tl.where(word[None, :] < word[:, None], of_word[None, :], 0), 1)
        ranks = tl.reshape(tl.cumsum(bits, 1) + before[:, None], [VIEWS_BLOCK])
    return ranks


@triton.jit
def _choose(
    score,
    view_list,
    count,
    selected,
    selected_index,
    selected_count,
    list_index,
    top_k,
    sink,
    recent,
    MOST: tl.constexpr,
    MOST_BLOCK: tl.constexpr,
    VIEWS_BLOCK: tl.constexpr,
):
    """Write the list of one row and KV head from its scores [VIEWS_BLOCK]."""
    # Told that neighbours are not, the compiler keeps one view of each 32 in a thread from here to the stores, which are
    # scattered anyway; else it loads four at a time and hands everything round again before it stores.
    index = tl.max_contiguous(tl.arange(0, VIEWS_BLOCK), 1)
    exists = index < count
    length = tl.load(view_list + index * 4 + 2, mask=exists, other=0)
    has_tokens = length > 0
    # Adding zero makes -0.0 the same key as 0.0.
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    key = tl.where(is_nan, 2147483646, bits ^ ((bits >> 31) & 0x7FFFFFFF))
    forced = has_tokens & ((index < sink) | (index >= count - recent))
    eligible = has_tokens & (forced == 0)
    threshold, reached, wanted, total = _threshold(key, top_k, eligible, forced)
    chosen = forced | (eligible & (key >= threshold))
    if reached != wanted:
        # Equal keys stand at the threshold: of them the first ones.
        above = eligible & (key > threshold)
        equal = eligible & (key == threshold)
        chosen = forced | above | (equal & (_ranks(equal, VIEWS_BLOCK) <= wanted - tl.sum(above.to(tl.int32), 0)))
    place = _ranks(chosen, VIEWS_BLOCK) - 1
    to = selected + (list_index.to(tl.int64) * MOST + place) * 4
    for field in tl.static_range(4):
        tl.store(to + field, tl.load(view_list + index * 4 + field, mask=chosen, other=0), mask=chosen)
    tl.store(selected_index + list_index.to(tl.int64) * MOST + place, index, mask=chosen)
    tl.store(selected_count + list_index, total)
    rest = tl.arange(0, MOST_BLOCK)
    unused = (rest >= total) & (rest < MOST)
    for field in tl.static_range(4):
        tl.store(selected + (list_index.to(tl.int64) * MOST + rest) * 4 + field, tl.zeros_like(rest), mask=unused)
    tl.store(selected_index + list_index.to(tl.int64) * MOST + rest, tl.full([MOST_BLOCK], -1, tl.int32), mask=unused)


@triton.jit
def block_select_kernel(
    query,
    bounds,
    views,
    view_start,
    query_position,
    phase_step,
    scores,
    selected,
    selected_index,
    selected_count,
    arrived,
    query_stride_batch,
    query_stride_head,
    max_views,
    attention_scale,
    top_k,
    sink,
    recent,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAIRS_BLOCK: tl.constexpr,
    ROTARY: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HARDWARE: tl.constexpr,
    OVERLAP: tl.constexpr,
    BLOCK: tl.constexpr,
    MOST: tl.constexpr,
    MOST_BLOCK: tl.constexpr,
    VIEWS_BLOCK: tl.constexpr,
):
    """Score BLOCK views of one row for one KV head; the last program of the row and head chooses."""
    if OVERLAP:
        # The launch that follows may begin; what it needs of this one it waits for. This one is launched plainly, so all
        # before it have ended.
        gdc_launch_dependents()
    part = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.program_id(2)
    list_index = row * KV_HEADS + head
    first_view = tl.load(view_start + row)
    # `check_view_values` refuses longer rows where views are made; here they must not write outside their room.
    count = tl.minimum(tl.load(view_start + row + 1) - first_view, max_views)
    parts = tl.maximum(tl.cdiv(count, BLOCK), 1)
    if part < parts:
        view_list = views + first_view.to(tl.int64) * 4
        score_list = scores + list_index.to(tl.int64) * max_views
        index = part * BLOCK + tl.arange(0, BLOCK)
        score = _score_views(
            query + row.to(tl.int64) * query_stride_batch,
            bounds,
            view_list,
            tl.load(query_position + row),
            phase_step,
            query_stride_head,
            attention_scale,
            head,
            index,
            count,
            KV_HEADS,
            GROUP,
            HEAD_DIM,
            PAIRS_BLOCK,
            ROTARY,
            INTERLEAVED,
            HARDWARE,
        )
        tl.store(score_list + index, score, mask=index < count)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + list_index, 1, sem="acq_rel", scope="gpu")
        if before == parts - 1:
            tl.debug_barrier()
            every = tl.max_contiguous(tl.arange(0, VIEWS_BLOCK), 1)
            all_scores = tl.load(score_list + every, mask=every < count, other=0.0, cache_modifier=".cg")
            _choose(
                all_scores,
                view_list,
                count,
                selected,
                selected_index,
                selected_count,
                list_index,
                top_k,
                sink,
                recent,
                MOST,
                MOST_BLOCK,
                VIEWS_BLOCK,
            )
            tl.store(arrived + list_index, 0)
