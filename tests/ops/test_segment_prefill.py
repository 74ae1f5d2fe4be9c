"""Ragged prefill against float64 attention of each query over exactly the tokens that it may see."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from akashic_kernels.errors import KernelInputError
from akashic_kernels.segment_prefill import plan_segments, segment_prefill
from akashic_kernels.segment_prefill.plan import cut_tiles
from akashic_kernels.views import PageShape
from kernel_bounds import assert_within_bound, poisoned
from segment_cases import Segment, SegmentCase, at_positions, pages_in_order

DROPPED_AND_MOVED = [
    # A first run; the next after a Drop of slots 5..11 of page 0; the third after a Repos of what is left.
    Segment(pages_in_order(19), 19, 0),
    Segment([(0, 0, 5, 0), (0, 12, 4, 0), (1, 0, 3, 16), (2, 0, 16, 19), (3, 0, 2, 35)], 18, 19),
    Segment([(0, 0, 5, 0), (0, 12, 4, -7), (2, 3, 13, 6), (3, 0, 2, 22), (4, 0, 7, 24)], 7, 24),
]


def _check(case: SegmentCase) -> None:
    assert_within_bound(case.run(case.plan()), case.same_type(), case.truth())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_plain_prefill_is_causal_attention(dtype: torch.dtype, device: str) -> None:
    _check(SegmentCase([Segment(pages_in_order(41), 41, 0)], dtype=dtype, device=device))


@pytest.mark.parametrize("tokens", [1, 2, 13, 16, 17])
def test_any_number_of_queries_is_answered(tokens: int, device: str) -> None:
    _check(SegmentCase([Segment(pages_in_order(tokens), tokens, 0)], device=device, seed=tokens))


@pytest.mark.parametrize("queries", [1, 5, 32, 33])
def test_a_chunk_sees_what_came_before_it(queries: int, device: str) -> None:
    _check(SegmentCase([Segment(pages_in_order(57), queries, 57 - queries)], device=device))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_each_segment_sees_its_own_views_at_its_own_positions(dtype: torch.dtype, device: str) -> None:
    _check(SegmentCase(DROPPED_AND_MOVED, dtype=dtype, device=device))


def test_segments_that_share_a_prefix_and_single_tokens_go_in_one_launch(device: str) -> None:
    prefix = pages_in_order(37)
    segments = [
        Segment([*prefix, (3, 0, 9, 37)], 9, 37),
        Segment([*prefix, (4, 0, 1, 37)], 1, 37),
        Segment([(5, 3, 1, -3)], 1, 0),
        Segment([*prefix, (6, 15, 1, 22)], 1, 37),
    ]
    _check(SegmentCase(segments, device=device))


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(1, 1), (7, 7), (9, 3), (14, 2), (17, 1), (40, 1)])
def test_any_group_of_query_heads_shares_a_kv_head(q_heads: int, kv_heads: int, device: str) -> None:
    _check(SegmentCase([Segment(pages_in_order(21), 9, 12)], q_heads=q_heads, kv_heads=kv_heads, device=device))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 16), (64, 32), (80, 80), (96, 32), (128, 128), (256, 256)])
def test_head_sizes_and_pairings_and_parts_of_a_head(layout: Any, head_dim: int, rotary_dim: int, device: str) -> None:
    shape = {"head_dim": head_dim, "rotary_dim": rotary_dim, "layout": layout, "attention_scale": 1.2}
    _check(SegmentCase([Segment([(1, 2, 9, 70), (0, 0, 5, 79)], 4, 80)], **shape, device=device))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_int8_pages_with_scales(dtype: torch.dtype, device: str) -> None:
    _check(SegmentCase(DROPPED_AND_MOVED, dtype=dtype, quantised=True, device=device))


def test_the_real_page_size_and_scores_that_differ_greatly(device: str) -> None:
    segment = Segment(pages_in_order(300, 128), 7, 293)
    _check(SegmentCase([segment], page_size=128, head_dim=64, spread=6.0, device=device))


@pytest.mark.parametrize("distance", [-5000, 1_000_003])
def test_far_positions_are_turned_as_exactly_as_near_ones(distance: int, device: str) -> None:
    case = SegmentCase(DROPPED_AND_MOVED[1:], device=device, dtype=torch.float16)
    at_positions(case, distance)
    _check(case)


def test_a_short_chunk_on_a_long_context_is_cut_into_pieces_and_joined(device: str) -> None:
    views = pages_in_order(16 * 41 + 3)
    case = SegmentCase([Segment(views, 3, 16 * 41), Segment(pages_in_order(2, first_page=42), 2, 0)], device=device)
    whole = cut_tiles(case.segments, case.views, tile_queries=64, kv_heads=2, programs=1)
    assert whole.partial_count == 0
    cut = cut_tiles(case.segments, case.views, tile_queries=64, kv_heads=2, programs=16)
    assert cut.partial_count == cut.merges[0, 3] == 6
    covered = sorted((int(row[2]), int(row[3])) for row in cut.tiles if row[6] >= 0)
    assert covered[0][0] == 0
    assert covered[-1][1] == len(views)
    assert all(before[1] == after[0] for before, after in pairwise(covered))
    _check(case)


def test_a_tile_stops_at_the_view_of_its_last_query() -> None:
    case = SegmentCase([Segment(pages_in_order(160), 160, 0)])
    cut = cut_tiles(case.segments, case.views, tile_queries=32, kv_heads=2, programs=1)
    assert [row[3] for row in cut.tiles.tolist()] == [10, 8, 6, 4, 2]
    assert [row[4] for row in cut.tiles.tolist()] == [129, 97, 65, 33, 1]


def test_a_segment_alone_is_bit_for_bit_the_segment_among_others(device: str) -> None:
    together = SegmentCase(DROPPED_AND_MOVED, device=device)
    out = together.run(together.plan())
    for row, (start, count, first, views, position) in enumerate(together.segments.tolist()):
        plan = plan_segments(
            torch.tensor([[0, count, 0, views, position]], dtype=torch.int32),
            together.views[first : first + views],
            together.kv.rope,
            PageShape(*together.kv.k_pages.shape),
            query_heads=together.kv.q_heads,
            device=device,
            backend="triton",
        )
        alone = poisoned(count, *out.shape[1:], dtype=out.dtype, device=device)
        query = together.kv.query[start : start + count]
        segment_prefill(query, together.kv.k_pages, together.kv.v_pages, plan, out=alone)
        assert torch.equal(alone, out[start : start + count]), f"segment {row}"


def test_a_query_inside_wider_rows_is_read_where_it_lies(device: str) -> None:
    case = SegmentCase([Segment(pages_in_order(20), 20, 0)], device=device)
    dense = case.run(case.plan())
    wide = poisoned(20, case.kv.q_heads + 3, case.kv.head_dim, dtype=case.kv.dtype, device=device)
    wide[:, : case.kv.q_heads] = case.kv.query
    case.kv.query = wide[:, : case.kv.q_heads]
    assert torch.equal(case.run(case.plan()), dense)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_reference_is_plain_attention_too(layout: Any, quantised: bool) -> None:
    shape = {"head_dim": 48, "rotary_dim": 32, "layout": layout, "attention_scale": 0.9, "quantised": quantised}
    case = SegmentCase(DROPPED_AND_MOVED, **shape)
    assert_within_bound(case.run(case.plan("reference")), case.same_type(), case.truth())


def test_the_reference_cuts_queries_into_blocks_without_changing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    case = SegmentCase(DROPPED_AND_MOVED, dtype=torch.float32)
    whole = case.run(case.plan("reference"))
    monkeypatch.setattr("akashic_kernels.segment_prefill.reference.MASK_ELEMENTS", 100)
    assert_within_bound(case.run(case.plan("reference")), whole, case.truth())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"segments": [[0, 5, 0, 2, 0], [6, 1, 0, 2, 0]]}, "follow each other"),
        ({"segments": [[0, 0, 0, 2, 0]]}, "a query or more"),
        ({"segments": [[0, 5, 0, 3, 0]]}, "outside of the 2 views"),
        ({"segments": [[0, 21, 0, 2, 0]]}, "segment 0 has 21 queries"),
        ({"segments": [[0, 5, 0, 2, 1 << 30]]}, "positions"),
        ({"views": [[0, 0, 16, 0], [2, 0, 4, 16]]}, "outside"),
        ({"views": [[0, 0, 16, 0], [1, 13, 4, 16]]}, "outside"),
        ({"query_heads": 3}, "evenly"),
        ({"query_heads": 130}, "at most 64"),
    ],
)
def test_wrong_segments_are_refused_by_name(change: dict[str, Any], word: str) -> None:
    case = SegmentCase([Segment(pages_in_order(20), 5, 15)])
    tables: dict[str, Any] = {
        "segments": case.segments.tolist(),
        "views": case.views.tolist(),
        "query_heads": 4,
    } | change
    with pytest.raises(KernelInputError, match=word):
        plan_segments(
            torch.tensor(tables["segments"], dtype=torch.int32),
            torch.tensor(tables["views"], dtype=torch.int32),
            case.kv.rope,
            PageShape(2, 2, 16, 32),
            query_heads=tables["query_heads"],
            device="cpu",
        )


def test_tensors_that_differ_from_the_plan_are_refused() -> None:
    case = SegmentCase([Segment(pages_in_order(20), 5, 15)])
    plan, kv = case.plan("reference"), case.kv
    with pytest.raises(KernelInputError, match="query must have the shape"):
        segment_prefill(kv.query[:4], kv.k_pages, kv.v_pages, plan)
    with pytest.raises(KernelInputError, match="the plan was made for pages"):
        segment_prefill(kv.query, kv.k_pages[:1], kv.v_pages[:1], plan)
    with pytest.raises(KernelInputError, match="dense in a token's heads"):
        segment_prefill(kv.query.transpose(0, 1).contiguous().transpose(0, 1), kv.k_pages, kv.v_pages, plan)
    with pytest.raises(KernelInputError, match="out must be"):
        segment_prefill(kv.query, kv.k_pages, kv.v_pages, plan, out=torch.empty(5, 4, 32))
