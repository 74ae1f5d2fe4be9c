"""Decode attention against float64 over tokens at their absolute positions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from akashic_kernels.paged_decode import (
    DecodeWorkspace,
    make_workspace,
    paged_decode,
    paged_decode_selected,
    selected_tiles,
)
from akashic_kernels.paged_decode.api import MERGE_ELEMENTS
from kernel_bounds import assert_within_bound, poisoned
from paged_kv import PagedKv, ViewTuple, attention_of


def _full(pages: int, page_size: int = 16, last: int | None = None, first_page: int = 0) -> list[ViewTuple]:
    """Pages in order without gaps, the last one partly full."""
    views = [(first_page + i, 0, page_size, i * page_size) for i in range(pages)]
    if last is not None:
        views[-1] = (views[-1][0], 0, last, views[-1][3])
    return views


def _workspace(kv: PagedKv, splits: int) -> DecodeWorkspace:
    return make_workspace(len(kv.rows), kv.q_heads, kv.kv_heads, kv.head_dim, kv.device, splits=splits)


def _decode(kv: PagedKv, splits: int = 2, launches: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the Triton kernel into poisoned outputs, each launch over one workspace."""
    workspace = _workspace(kv, splits)
    results = []
    for _ in range(launches):
        workspace.partial.fill_(float("nan"))
        workspace.partial_lse.fill_(float("nan"))
        out = poisoned(*kv.query.shape, dtype=kv.query.dtype, device=kv.device)
        lse = poisoned(*kv.query.shape[:2], dtype=torch.float32, device=kv.device)
        arguments = (kv.query, kv.k_pages, kv.v_pages, kv.views, kv.view_start, kv.query_position, kv.rope)
        paged_decode(*arguments, **kv.scales, out=out, lse=lse, workspace=workspace, backend="triton")
        results.append((out, lse))
    assert not workspace.arrived.any()
    assert torch.equal(results[0][0], results[-1][0])
    return results[-1]


def _check(kv: PagedKv, splits: int = 2) -> None:
    out, lse = _decode(kv, splits)
    lists = [[row] for row in kv.rows]
    truth, true_lse = attention_of(kv, lists, torch.float64, torch.float64)
    same, same_lse = attention_of(kv, lists, torch.float32, kv.dtype)
    assert_within_bound(out, same, truth)
    seen = torch.isfinite(true_lse)
    assert torch.equal(torch.isfinite(lse.cpu()), seen)
    assert_within_bound(lse.cpu()[seen], same_lse[seen], true_lse[seen])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("pages", [1, 2, 7])
def test_pages_in_order_give_plain_attention(dtype: torch.dtype, pages: int, device: str) -> None:
    _check(PagedKv([_full(pages, last=5)], [16 * pages - 12], dtype=dtype, device=device))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 33])
def test_any_number_of_tokens_is_seen_exactly(length: int, device: str) -> None:
    views = _full(-(-length // 16), last=(length - 1) % 16 + 1)
    _check(PagedKv([views], [length - 1], device=device, seed=length))


def test_partial_views_out_of_order_and_far_away_are_seen_where_their_base_says(device: str) -> None:
    views = [(3, 5, 7, 1_000_000), (0, 0, 16, -9), (3, 1, 2, 40), (5, 15, 1, 70_000), (4, 0, 0, 3)]
    _check(PagedKv([views], [1_000_017], device=device))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(32, 16), (64, 64), (80, 32), (96, 96), (128, 128), (256, 256)])
def test_head_sizes_and_pairings_and_parts_of_a_head(layout: Any, head_dim: int, rotary_dim: int, device: str) -> None:
    kv = PagedKv(
        [_full(3, last=3)],
        [39],
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        layout=layout,
        attention_scale=1.2,
        device=device,
    )
    _check(kv)


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(1, 1), (7, 7), (6, 2), (9, 3), (14, 2), (17, 1), (8, 8)])
def test_any_group_of_query_heads_shares_a_kv_head(q_heads: int, kv_heads: int, device: str) -> None:
    _check(PagedKv([_full(3)], [48], q_heads=q_heads, kv_heads=kv_heads, device=device))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_int8_pages_with_scales(dtype: torch.dtype, device: str) -> None:
    rows = [_full(3, last=9), [(4, 3, 8, 100)]]
    _check(PagedKv(rows, [40, 130], dtype=dtype, quantised=True, device=device))


def test_the_real_page_size_and_scores_that_differ_greatly(device: str) -> None:
    kv = PagedKv([_full(2, 128, last=101)], [228], page_size=128, head_dim=64, spread=6.0, device=device)
    _check(kv)


def test_ragged_rows_one_of_them_empty(device: str) -> None:
    rows: list[list[ViewTuple]] = [_full(5, last=1), [], _full(1, last=1, first_page=5), _full(2, first_page=6)]
    kv = PagedKv(rows, [64, 0, 0, 32], device=device)
    _check(kv)
    out, lse = _decode(kv, launches=2)
    assert not out[1].any()
    assert bool((lse[1] == -math.inf).all())


def test_a_row_alone_is_bit_for_bit_the_row_in_a_batch(device: str) -> None:
    rows = [_full(3, last=4), _full(2, first_page=3), _full(4, first_page=5)]
    kv = PagedKv(rows, [40, 31, 64], device=device)
    together, _ = _decode(kv)
    for row in range(3):
        alone = poisoned(1, kv.q_heads, kv.head_dim, dtype=kv.dtype, device=device)
        start = kv.view_start[row : row + 2]
        paged_decode(
            kv.query[row : row + 1],
            kv.k_pages,
            kv.v_pages,
            kv.views,
            start.contiguous(),
            kv.query_position[row : row + 1],
            kv.rope,
            out=alone,
            workspace=make_workspace(1, kv.q_heads, kv.kv_heads, kv.head_dim, device, splits=2),
            backend="triton",
        )
        assert torch.equal(alone[0], together[row])


def test_a_merge_in_several_rounds_keeps_the_bound(device: str) -> None:
    kv = PagedKv([_full(3, last=5), []], [37, 0], head_dim=256, q_heads=16, kv_heads=1, device=device)
    splits = 9
    assert splits > MERGE_ELEMENTS // (16 * 256)
    _check(kv, splits)


@pytest.mark.parametrize("splits", [1, 2, 5, 17])
def test_any_split_keeps_the_bound(splits: int, device: str) -> None:
    _check(PagedKv([_full(7, last=7), _full(1, last=2, first_page=7)], [103, 1], device=device), splits)


def test_moving_all_text_and_the_query_by_the_same_distance_changes_no_bit(device: str) -> None:
    here = PagedKv([_full(3)], [50], device=device)
    there = PagedKv(
        [[(page, offset, length, base + 12345) for page, offset, length, base in _full(3)]], [12395], device=device
    )
    assert torch.equal(_decode(here)[0], _decode(there)[0])


def test_a_query_with_gaps_between_rows_and_heads_is_read_where_it_lies(device: str) -> None:
    kv = PagedKv([_full(2), _full(1, first_page=2)], [32, 16], device=device)
    wide = poisoned(2, kv.q_heads * 2, kv.head_dim + 8, dtype=kv.dtype, device=device)
    wide[:, ::2, : kv.head_dim] = kv.query
    dense, _ = _decode(kv)
    kv.query = wide[:, ::2, : kv.head_dim]
    assert torch.equal(_decode(kv)[0], dense)


def test_each_kv_head_attends_to_its_own_list(device: str) -> None:
    lists = [[_full(3)[1:], [_full(3)[2]]], [[(3, 2, 9, 77)], []]]
    rows = [_full(3), [(3, 2, 9, 77)]]
    kv = PagedKv(rows, [48, 90], device=device)
    selected = poisoned(2, kv.kv_heads, 3, 4, dtype=torch.int32, device=device)
    count = torch.zeros(2, kv.kv_heads, dtype=torch.int32, device=device)
    for row, heads in enumerate(lists):
        for head, views in enumerate(heads):
            count[row, head] = len(views)
            for i, view in enumerate(views):
                selected[row, head, i] = torch.tensor(view, dtype=torch.int32)
    truth, _ = attention_of(kv, lists, torch.float64, torch.float64)
    same, _ = attention_of(kv, lists, torch.float32, kv.dtype)
    for backend in ("triton", "reference"):
        out = poisoned(*kv.query.shape, dtype=kv.dtype, device=device)
        arguments = (kv.query, kv.k_pages, kv.v_pages, selected, count, kv.query_position, kv.rope)
        paged_decode_selected(*arguments, out=out, workspace=_workspace(kv, 2), backend=backend)
        assert_within_bound(out, same, truth)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_reference_is_plain_attention_too(layout: Any, quantised: bool) -> None:
    rows: list[list[ViewTuple]] = [_full(3, last=4), [], [(3, 1, 14, 200_000)]]
    kv = PagedKv(
        rows, [40, 0, 200_100], head_dim=48, rotary_dim=32, layout=layout, attention_scale=0.9, quantised=quantised
    )
    out = poisoned(*kv.query.shape, dtype=kv.dtype, device="cpu")
    lse = poisoned(*kv.query.shape[:2], dtype=torch.float32, device="cpu")
    arguments = (kv.query, kv.k_pages, kv.v_pages, kv.views, kv.view_start, kv.query_position, kv.rope)
    paged_decode(*arguments, **kv.scales, out=out, lse=lse)
    lists = [[row] for row in kv.rows]
    truth, true_lse = attention_of(kv, lists, torch.float64, torch.float64)
    assert_within_bound(out, attention_of(kv, lists, torch.float32, kv.dtype)[0], truth)
    assert bool((lse[1] == -math.inf).all())
    assert_within_bound(lse[::2], attention_of(kv, lists, torch.float32, torch.float32)[1][::2], true_lse[::2])


def test_lists_are_cut_into_as_few_parts_as_leave_the_longest_as_short() -> None:
    def parts(views: int) -> int:
        tiles = selected_tiles(views, 128, torch.bfloat16)
        return make_workspace(1, 4, 1, 32, "cpu", tiles=tiles).splits

    # The CPU's own number is four: of 10 tiles the longest part has three, of 18 five, of 2 and 4 one.
    assert [parts(5), parts(9), parts(1), parts(2)] == [4, 4, 2, 4]
    assert parts(3) == 3  # two tiles each, which four parts wouldn't lessen
