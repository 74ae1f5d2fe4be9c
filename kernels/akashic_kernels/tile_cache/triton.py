"""The tile cache's kernels: one program a head admits, a few programs copy."""

from __future__ import annotations

import triton
import triton.language as tl

_NEVER = tl.constexpr(float("-inf"))
_ALWAYS = tl.constexpr(float("inf"))


@triton.jit
def _score_pages(scores, views, view_start, score, batch, max_views, pages, head, KV_HEADS, PAGES_BLOCK: tl.constexpr):
    """Let score[page] be the best score of the page's views in any row, minus infinity where no row sees it."""
    lane = tl.arange(0, PAGES_BLOCK)
    for first in range(0, pages + 1, PAGES_BLOCK):
        tl.store(score + first + lane, _NEVER, mask=first + lane <= pages)
    tl.debug_barrier()
    for row in range(batch):
        start = tl.load(view_start + row)
        count = tl.load(view_start + row + 1) - start
        of_row = scores + (row * KV_HEADS + head).to(tl.int64) * max_views
        for first in range(0, count, PAGES_BLOCK):
            there = first + lane < count
            page = tl.load(views + (start + first + lane).to(tl.int64) * 4, mask=there, other=0)
            tl.atomic_max(score + page, tl.load(of_row + first + lane, mask=there, other=_NEVER), mask=there)
    tl.debug_barrier()


@triton.jit
def _average(score, means, pages, SHARE: tl.constexpr, PAGES_BLOCK: tl.constexpr):
    """Let each page's score move its running mean by SHARE, and give the mean in its place; see README.md."""
    lane = tl.arange(0, PAGES_BLOCK)
    for first in range(0, pages, PAGES_BLOCK):
        there = first + lane < pages
        now = tl.load(score + first + lane, mask=there, other=_NEVER)
        old = tl.load(means + first + lane, mask=there, other=_NEVER)
        begins = (now == _NEVER) | ((tl.abs(old) < _ALWAYS) == 0)
        old = tl.where(begins, 0.0, old)
        moved = old + (tl.where(begins, 0.0, now) - old) * SHARE
        mean = tl.where(begins, now, moved)
        tl.store(means + first + lane, mean, mask=there)
        tl.store(score + first + lane, mean, mask=there)
    tl.debug_barrier()


@triton.jit
def _ascending(value, slot, in_range):
    """Order slots by their values: an integer that sorts as the value does, the slot in its low half."""
    bits = value.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    packed = tl.where(in_range, (ordered << 32) | slot.to(tl.int64), 0x7FFFFFFFFFFFFFFF)
    return (tl.sort(packed) & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def _best_absent(score, slot_of, pages, PAGES_BLOCK: tl.constexpr):
    """Give the best score of a page that has no slot, and the page."""
    lane = tl.arange(0, PAGES_BLOCK)
    best, where = _NEVER, pages
    for first in range(0, pages, PAGES_BLOCK):
        there = first + lane < pages
        absent = tl.load(slot_of + first + lane, mask=there, other=0) < 0
        value = tl.where(absent, tl.load(score + first + lane, mask=there, other=_NEVER), _NEVER)
        most, at = tl.max(value, 0), tl.argmax(value, 0)
        where = tl.where(most > best, first + at, where)
        best = tl.maximum(best, most)
    return best, where


@triton.jit
def admit_kernel(
    sel_views,
    sel_count,
    scores,
    views,
    view_start,
    slot_of,
    page_in,
    source,
    target,
    counts,
    told,
    score,
    claim,
    victims,
    means,
    batch,
    max_views,
    pages,
    slots,
    room,
    KV_HEADS: tl.constexpr,
    MOST: tl.constexpr,
    CHOSEN_BLOCK: tl.constexpr,
    SLOTS_BLOCK: tl.constexpr,
    PAGES_BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
    SHARE: tl.constexpr,
):
    """Admit one head's tiles of a layer; see README.md."""
    head = tl.program_id(0)
    slot_of += head * (pages + 1)
    score += head * (pages + 1)
    claim += head * (pages + 1)
    means += head * (pages + 1)
    page_in += head * slots
    victims += head * slots
    _score_pages(scores, views, view_start, score, batch, max_views, pages, head, KV_HEADS, PAGES_BLOCK)
    _average(score, means, pages, SHARE, PAGES_BLOCK)

    entry = tl.arange(0, CHOSEN_BLOCK)
    row, place = entry // MOST, entry % MOST
    count = tl.load(sel_count + row * KV_HEADS + head, mask=row < batch, other=0)
    named = place < count
    cell = sel_views + ((row * KV_HEADS + head) * MOST + place).to(tl.int64) * 4
    page = tl.load(cell, mask=named, other=0)
    tl.store(score + page, _ALWAYS, mask=named)
    tl.store(claim + page, entry, mask=named)  # rows that name one page: one of them brings it
    tl.debug_barrier()
    own = tl.load(claim + page, mask=named, other=-1) == entry
    lacks = named & own & (tl.load(slot_of + page, mask=named, other=0) < 0)
    lacking = tl.sum(lacks.to(tl.int32), 0)

    slot = tl.arange(0, SLOTS_BLOCK)
    in_range = slot < slots
    held = tl.load(page_in + slot, mask=in_range, other=pages)
    value = tl.load(score + held, mask=in_range & (held < pages), other=_NEVER)
    tl.store(victims + slot, _ascending(value, slot, in_range), mask=in_range)
    tl.debug_barrier()

    rank = tl.cumsum(lacks.to(tl.int32), 0) - 1
    goes_to = tl.load(victims + rank, mask=lacks, other=0)
    gone = tl.load(page_in + goes_to, mask=lacks, other=pages)
    tl.store(slot_of + gone, -1, mask=lacks & (gone < pages))
    tl.debug_barrier()
    tl.store(page_in + goes_to, page, mask=lacks)
    tl.store(slot_of + page, goes_to, mask=lacks)
    tl.debug_barrier()
    tl.store(cell, tl.load(slot_of + page, mask=named, other=0), mask=named)
    at = tl.atomic_add(counts, lacking)
    tl.store(source + at + rank, page * KV_HEADS + head, mask=lacks)
    tl.store(target + at + rank, goes_to * KV_HEADS + head, mask=lacks)

    came = lacking * 0
    for number in range(AHEAD):
        best, wanted = _best_absent(score, slot_of, pages, PAGES_BLOCK)
        is_slot = lacking + number < slots
        way = tl.load(victims + lacking + number, mask=is_slot, other=0)
        old = tl.load(page_in + way, mask=is_slot, other=pages)
        worth = tl.load(score + old, mask=is_slot & (old < pages), other=_NEVER)
        comes = is_slot & (best > worth) & (came == number)
        tl.debug_barrier()
        tl.store(slot_of + old, -1, mask=comes & (old < pages))
        tl.store(page_in + way, wanted, mask=comes)
        tl.store(slot_of + wanted, way, mask=comes)
        then = tl.atomic_add(counts + 1, comes.to(tl.int32))
        tl.store(source + room + then, wanted * KV_HEADS + head, mask=comes)
        tl.store(target + room + then, way * KV_HEADS + head, mask=comes)
        came += comes.to(tl.int32)
        tl.debug_barrier()
    tl.atomic_add(told, tl.sum(named.to(tl.int32), 0).to(tl.int64))
    tl.atomic_add(told + 1, lacking.to(tl.int64))
    tl.atomic_add(told + 2, came.to(tl.int64))


@triton.jit
def fetch_kernel(
    k_home,
    k_tiles,
    v_home,
    v_tiles,
    source,
    target,
    counts,
    which,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS_PER_TILE: tl.constexpr,
):
    """Copy the listed tiles of K and V, TILE int32 words each; neighbouring programs take neighbouring chunks."""
    lane = tl.arange(0, CHUNK)
    chunks = tl.load(counts + which) * 2 * CHUNKS_PER_TILE
    for chunk in range(tl.program_id(0), chunks, tl.num_programs(0)):
        piece = chunk // (2 * CHUNKS_PER_TILE)
        part = chunk % (2 * CHUNKS_PER_TILE)
        word = (part % CHUNKS_PER_TILE) * CHUNK + lane
        origin = tl.load(source + piece).to(tl.int64) * TILE
        place = tl.load(target + piece).to(tl.int64) * TILE
        if part < CHUNKS_PER_TILE:
            words = tl.load(k_home + origin + word, mask=word < TILE, eviction_policy="evict_first")
            tl.store(k_tiles + place + word, words, mask=word < TILE)
        else:
            words = tl.load(v_home + origin + word, mask=word < TILE, eviction_policy="evict_first")
            tl.store(v_tiles + place + word, words, mask=word < TILE)
