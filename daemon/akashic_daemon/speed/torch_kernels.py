"""Times the torch engine's kernels against what the same machine can do at most, measured in the same run.

Each row names its ceiling. `of_ceiling` is 1 where a kernel is as fast, more where it is faster: it may read less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from akashic_daemon.speed.stopwatch import Stopwatch
from akashic_kernels.block_select import block_select, make_selection
from akashic_kernels.block_summary import make_bounds, update_bounds
from akashic_kernels.kv_gather import kv_gather
from akashic_kernels.paged_decode import make_workspace, paged_decode, paged_decode_selected, selected_tiles
from akashic_kernels.rope import make_rope
from akashic_kernels.segment_prefill import plan_segments, segment_prefill
from akashic_kernels.views import PageShape

HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 128
BLOCKS, SINK, RECENT = 32, 1, 2
Row = dict[str, Any]


def points(device: torch.device, *, full: bool) -> tuple[list[int], list[int]]:
    """Return the contexts to decode at and the prompts to prefill."""
    if device.type == "cpu":
        return [1024], [256]
    return ([32768, 131072, 262144] if full else [32768, 131072]), ([2048, 8192] if full else [4096])


def time_kernels(device: torch.device, *, full: bool) -> Iterator[Row]:
    """Yield a row for each kernel and size: what, seconds, the ceiling's name and seconds, of_ceiling."""
    watch = Stopwatch(device)
    copied = watch.copy_bytes_per_s()
    yield {"what": "copy on the device", "value": copied / 1e9, "unit": "GB/s", "ceiling": "", "of_ceiling": None}
    contexts, prompts = points(device, full=full)
    for context in contexts:
        yield from _decode(watch, context, copied)
    for prompt in prompts:
        yield _prefill(watch, prompt)
    if watch.on_gpu:
        yield _gather(watch)


def _row(what: str, seconds: float, ceiling: str, ceiling_s: float) -> Row:
    return {"what": what, "value": 1e6 * seconds, "unit": "us", "ceiling": ceiling, "of_ceiling": ceiling_s / seconds}


class _Layer:
    """One layer's random KV of so many tokens, in pages and in one piece, and queries for it."""

    def __init__(self, device: torch.device, tokens: int, queries: int) -> None:
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        made = torch.Generator(device).manual_seed(0)
        count = -(-tokens // PAGE)
        self.shape = PageShape(count, KV_HEADS, PAGE, HEAD_DIM)
        self.pages = [torch.randn(self.shape, generator=made, device=device, dtype=kind) for _ in "kv"]
        self.query = torch.randn(queries, HEADS, HEAD_DIM, generator=made, device=device, dtype=kind)
        rows = [(n, 0, min(PAGE, tokens - n * PAGE), n * PAGE) for n in range(count)]
        self.views = torch.tensor(rows, dtype=torch.int32)
        self.rope = make_rope(500000.0 ** (-torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2)), device=device)
        self.whole = [
            part.transpose(0, 1).reshape(1, KV_HEADS, count * PAGE, HEAD_DIM)[:, :, :tokens].contiguous()
            for part in self.pages
        ]


def _decode(watch: Stopwatch, context: int, copied: float) -> Iterator[Row]:
    """Dense and sparse decode of one token against SDPA on KV in one piece, whose group shares its heads."""
    layer = _Layer(watch.device, context, 1)
    device, (k, v), (whole_k, whole_v) = watch.device, layer.pages, layer.whole
    views = layer.views.to(device)
    start = torch.tensor([0, len(views)], dtype=torch.int32, device=device)
    position = torch.tensor([context - 1], dtype=torch.int32, device=device)
    room = make_workspace(1, HEADS, KV_HEADS, HEAD_DIM, device)
    query = layer.query.view(1, HEADS, 1, HEAD_DIM)
    theirs = watch.seconds(lambda: scaled_dot_product_attention(query, whole_k, whole_v, enable_gqa=True))
    ours = watch.seconds(lambda: paged_decode(layer.query, k, v, views, start, position, layer.rope, workspace=room))
    yield _row(f"paged_decode, {context:,} tokens", ours, "SDPA", theirs)
    yield _row(
        f"paged_decode, {context:,} tokens", ours, "copy", 2 * context * KV_HEADS * HEAD_DIM * k.itemsize / copied
    )
    bounds = make_bounds(len(k), KV_HEADS, HEAD_DIM, dtype=k.dtype, device=device)
    update_bounds(bounds, k, torch.tensor([(n, 0, PAGE) for n in range(len(k))], dtype=torch.int32, device=device))
    blocks = min(BLOCKS, max(1, len(views) // 4))
    chosen = make_selection(1, KV_HEADS, len(views), top_k=blocks, sink=SINK, recent=RECENT, device=device)
    tiles = selected_tiles(blocks + SINK + RECENT, PAGE, k.dtype)
    few = make_workspace(1, HEADS, KV_HEADS, HEAD_DIM, device, tiles=tiles)

    def sparse() -> None:
        block_select(
            layer.query, bounds, views, start, position, layer.rope, chosen, top_k=blocks, sink=SINK, recent=RECENT
        )
        paged_decode_selected(
            layer.query, k, v, chosen.views, chosen.count, position, layer.rope, workspace=few, after_choice=True
        )

    yield _row(f"sparse decode, {blocks} of {len(views):,} pages", watch.seconds(sparse), "SDPA", theirs)


def _prefill(watch: Stopwatch, tokens: int) -> Row:
    layer = _Layer(watch.device, tokens, tokens)
    plan = plan_segments(
        torch.tensor([(0, tokens, 0, len(layer.views), 0)], dtype=torch.int32), layer.views, layer.rope, layer.shape,
        query_heads=HEADS, device=watch.device,
    )  # fmt: skip
    query = layer.query.transpose(0, 1)[None].contiguous()
    (k, v), (whole_k, whole_v) = layer.pages, layer.whole
    theirs = watch.seconds(
        lambda: scaled_dot_product_attention(query, whole_k, whole_v, is_causal=True, enable_gqa=True)
    )
    ours = watch.seconds(lambda: segment_prefill(layer.query, k, v, plan))
    return _row(f"segment_prefill, {tokens:,} tokens", ours, "SDPA", theirs)


def _gather(watch: Stopwatch) -> Row:
    pieces, words = 4096, 8192
    host = torch.zeros(pieces, words, dtype=torch.int32, pin_memory=True)
    there = torch.empty(pieces, words, dtype=torch.int32, device=watch.device)
    order, place = (torch.randperm(pieces, device=watch.device) for _ in "io")
    theirs = watch.seconds(lambda: there.copy_(host, non_blocking=True), graph=False)
    ours = watch.seconds(lambda: kv_gather(host, order, there, place), graph=False)
    rate = host.nbytes / ours
    return {
        "what": "kv_gather, pieces of 32 KiB from RAM", "value": rate / 1e9, "unit": "GB/s", "ceiling": "one large copy",
        "of_ceiling": theirs / ours,
    }  # fmt: skip
