"""The choice of views: scores are upper bounds, the list is the reference's, ties and forced views included."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from akashic_kernels.block_select import Selection, block_select, make_selection
from akashic_kernels.block_select.reference import choose_row, score_row
from akashic_kernels.block_summary import make_bounds, update_bounds
from akashic_kernels.errors import KernelInputError
from akashic_kernels.paged_decode import paged_decode, paged_decode_selected
from akashic_kernels.rope.reference import rotate
from akashic_kernels.views import PageShape, check_view_values
from kernel_bounds import poisoned
from paged_kv import PagedKv, ViewTuple


def _row(pages: int, first_page: int = 0, start: int = 0) -> list[ViewTuple]:
    return [(first_page + i, 0, 16, start + 16 * i) for i in range(pages)]


def _bounds(kv: PagedKv) -> torch.Tensor:
    pages = kv.k_pages.shape[0]
    bounds = make_bounds(pages, kv.kv_heads, kv.head_dim, dtype=kv.dtype, device=kv.device)
    lengths = dict.fromkeys(range(pages), 0)
    for row in kv.rows:
        for page, offset, length, _ in row:
            lengths[page] = max(lengths[page], offset + length)
    runs = [(page, 0, length) for page, length in lengths.items()]
    keys = kv.k_pages.nan_to_num(0.0)
    update_bounds(bounds, keys, torch.tensor(runs, dtype=torch.int32, device=kv.device), backend="reference")
    return bounds


def _select(kv: PagedKv, bounds: torch.Tensor, top_k: int, sink: int, recent: int, max_views: int) -> Selection:
    heads = (len(kv.rows), kv.kv_heads)
    most = top_k + sink + recent
    selection = Selection(
        poisoned(*heads, most, 4, dtype=torch.int32, device=kv.device),
        poisoned(*heads, most, dtype=torch.int32, device=kv.device),
        poisoned(*heads, dtype=torch.int32, device=kv.device),
        poisoned(*heads, max_views, dtype=torch.float32, device=kv.device),
        torch.zeros(*heads, dtype=torch.int32, device=kv.device),
    )
    arguments = (kv.query, bounds, kv.views, kv.view_start, kv.query_position, kv.rope, selection)
    block_select(*arguments, top_k=top_k, sink=sink, recent=recent, backend="triton")
    assert not selection.arrived.any()
    return selection


def _check_lists(kv: PagedKv, selection: Selection, top_k: int, sink: int, recent: int) -> None:
    """Hold the lists to the reference's choice from the kernel's own scores."""
    for row, start in enumerate(kv.view_start[:-1].tolist()):
        views = kv.views[start : int(kv.view_start[row + 1])]
        scores = selection.scores[row, :, : views.shape[0]]
        assert bool(selection.scores[row, :, views.shape[0] :].isnan().all())
        for head, index in enumerate(choose_row(scores, views, top_k, sink, recent)):
            count = index.shape[0]
            assert int(selection.count[row, head]) == count
            assert torch.equal(selection.index[row, head, :count].long(), index)
            assert torch.equal(selection.views[row, head, :count], views[index])
            assert bool((selection.index[row, head, count:] == -1).all())
            assert not selection.views[row, head, count:].any()


@pytest.mark.parametrize(("top_k", "sink", "recent"), [(3, 1, 1), (1, 0, 0), (0, 1, 2), (4, 2, 3), (40, 1, 1)])
def test_the_list_is_sink_recent_and_the_best_others(top_k: int, sink: int, recent: int, device: str) -> None:
    kv = PagedKv([_row(17), _row(1, 17), [], _row(5, 18)], [272, 3, 0, 80], device=device)
    selection = _select(kv, _bounds(kv), top_k, sink, recent, max_views=17)
    _check_lists(kv, selection, top_k, sink, recent)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "q_heads", "kv_heads", "dtype"),
    [(64, 32, 6, 2, torch.float16), (80, 80, 3, 3, torch.bfloat16), (32, 32, 5, 1, torch.float32)],
)
def test_scores_lose_no_more_than_float32_must(
    layout: Any, head_dim: int, rotary_dim: int, q_heads: int, kv_heads: int, dtype: torch.dtype, device: str
) -> None:
    kv = PagedKv(
        [_row(3, start=999_000), _row(2, 3)],
        [1_000_000, 40],
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        q_heads=q_heads,
        kv_heads=kv_heads,
        layout=layout,
        dtype=dtype,
        attention_scale=1.1,
        device=device,
    )
    bounds = _bounds(kv)
    selection = _select(kv, bounds, 1, 1, 0, max_views=3)
    for row, views in enumerate((kv.views[:3], kv.views[3:])):
        truth = score_row(kv.query[row], bounds, views, kv.query_position[row], kv.rope, compute=torch.float64)
        error = (selection.scores[row, :, : len(views)].double() - truth).abs()
        assert bool((error <= _room(kv, bounds, row, views)).all()), float(error.max())


def _room(kv: PagedKv, bounds: torch.Tensor, row: int, views: torch.Tensor) -> torch.Tensor:
    """Give what float32 may lose of each score [kv_heads, n], in the worst case.

    Of each term: 8 roundings (angle's cosine or sine, three for the turned query, two for middle or reach, product), on
    a GPU 2^-20 for its own cosine and sine in both parts of a turned value; and one rounding for each term summed.
    """
    of_views = bounds[views[:, 0].long()].double()
    delta = kv.query_position[row].long() - views[:, 3].long()
    query = kv.query[row].view(kv.kv_heads, -1, kv.head_dim)
    turned = rotate(query, delta[:, None, None], kv.rope, torch.float64).abs()
    # A turned value that is small may be the difference of two large ones: take the head's greatest for each.
    turned = turned.amax(-1, keepdim=True).expand_as(turned)
    reach = of_views.abs().amax(2)[:, :, None]
    unit = torch.finfo(torch.float32).eps / 2
    share = (8 + 2 * kv.head_dim) * unit + (2.0**-20 if kv.device == "cuda" else 0.0)
    return share * (turned * 2 * reach).sum(-1).amax(-1).T


def test_no_visible_key_scores_above_its_view(device: str) -> None:
    rows: list[list[ViewTuple]] = [[(0, 3, 9, 500), (1, 0, 16, -40), (2, 15, 1, 0)]]
    kv = PagedKv(rows, [600], device=device, spread=3.0)
    bounds = _bounds(kv)
    scores = _select(kv, bounds, 1, 1, 1, max_views=3).scores[0].double().cpu()
    for index, (page, offset, length, base) in enumerate(rows[0]):
        turned = rotate(
            kv.query[0].view(kv.kv_heads, -1, kv.head_dim), kv.query_position - base, kv.rope, torch.float64
        )
        keys = kv.k_pages[page, :, offset : offset + length].double()
        best = (turned @ keys.transpose(1, 2)).amax((1, 2)).cpu()
        room = _room(kv, bounds, 0, kv.views[index : index + 1])[:, 0].cpu()
        assert bool((best <= scores[:, index] + room).all())


def test_of_equal_scores_the_first_are_taken(device: str) -> None:
    kv = PagedKv([[(0, 0, 16, 0)] * 9], [160], device=device)
    selection = _select(kv, _bounds(kv), 3, 1, 1, max_views=9)
    assert selection.index[0, 0].tolist() == [0, 1, 2, 3, 8]


@pytest.mark.parametrize("seed", range(4))
def test_scores_that_are_neighbours_or_far_apart_are_told_apart(seed: int, device: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    pages = 24
    near = 1.0 + torch.randint(0, 12, (pages,), generator=generator) * 2.0**-23
    far = torch.tensor([0.0, -0.0, 1.5e38, -1.5e38, 1.0, -1.0, 1.0e-30, -1.0e-30])
    values = torch.where(torch.rand(pages, generator=generator) < 0.7, near, far[torch.arange(pages) % 8])
    kv = PagedKv([[(page, 0, 16, 500) for page in range(pages)]], [500], dtype=torch.float32, device=device)
    kv.query.zero_()
    kv.query[:, :, 0] = 1.0
    bounds = torch.zeros_like(_bounds(kv))
    bounds[..., 0] = values.to(device)[:, None, None]
    for top_k in (1, 3, 6, 10, 15, 21):
        selection = _select(kv, bounds, top_k, 1, 1, max_views=pages)
        assert torch.equal(selection.scores[0, 0].cpu(), values + 0.0)
        _check_lists(kv, selection, top_k, 1, 1)


@pytest.mark.parametrize(("views", "top_k"), [(33, 11), (100, 32), (1500, 500), (4200, 40)])
def test_long_rows_with_many_equal_scores_are_listed_in_order(views: int, top_k: int, device: str) -> None:
    generator = torch.Generator().manual_seed(views)
    pages = torch.randint(0, 40, (views,), generator=generator).tolist()
    kv = PagedKv([[(page, 0, 16, 0) for page in pages]], [16 * views], q_heads=1, kv_heads=1, device=device)
    _check_lists(kv, _select(kv, _bounds(kv), top_k, 1, 2, max_views=views), top_k, 1, 2)


def test_views_without_tokens_are_never_chosen(device: str) -> None:
    rows = _row(6)
    rows[0], rows[3], rows[5] = (0, 0, 0, 0), (3, 4, 0, 48), (5, 0, 0, 80)
    kv = PagedKv([rows], [96], device=device)
    selection = _select(kv, _bounds(kv), 9, 1, 1, max_views=6)
    assert selection.count[0].tolist() == [3, 3]
    assert selection.index[0, 0, :3].tolist() == [1, 2, 4]
    _check_lists(kv, selection, 9, 1, 1)


def test_a_score_that_is_not_a_number_is_chosen_so_that_it_is_seen(device: str) -> None:
    kv = PagedKv([_row(6)], [96], device=device)
    bounds = _bounds(kv)
    bounds[4] = math.nan
    assert selection_index(kv, bounds) == [0, 4, 5]


def selection_index(kv: PagedKv, bounds: torch.Tensor) -> list[int]:
    """Give the chosen views of the first KV head, with one by score."""
    chosen: list[int] = _select(kv, bounds, 1, 1, 1, max_views=6).index[0, 0].tolist()
    return chosen


def test_choosing_everything_gives_dense_attention(device: str) -> None:
    kv = PagedKv([_row(5), _row(2, 5)], [80, 32], device=device)
    selection = _select(kv, _bounds(kv), 3, 1, 1, max_views=5)
    tail = (kv.query_position, kv.rope)
    sparse = paged_decode_selected(
        kv.query, kv.k_pages, kv.v_pages, selection.views, selection.count, *tail, backend="triton"
    )
    dense = paged_decode(kv.query, kv.k_pages, kv.v_pages, kv.views, kv.view_start, *tail, backend="triton")
    assert torch.equal(sparse, dense)


def test_the_reference_writes_the_same_lists(device: str) -> None:
    kv = PagedKv([_row(7), [], _row(1, 7)], [112, 0, 9], device=device)
    bounds = _bounds(kv)
    selection = make_selection(3, kv.kv_heads, 7, top_k=2, sink=1, recent=1, device=device)
    selection.scores.fill_(math.nan)
    arguments = (kv.query, bounds, kv.views, kv.view_start, kv.query_position, kv.rope, selection)
    block_select(*arguments, top_k=2, backend="reference")
    _check_lists(kv, selection, 2, 1, 1)
    assert torch.equal(_select(kv, bounds, 2, 1, 1, max_views=7).index, selection.index)


def test_rows_longer_than_their_room_are_refused_where_views_are_made() -> None:
    kv = PagedKv([_row(4)], [64])
    shape = PageShape(*kv.k_pages.shape)
    with pytest.raises(KernelInputError, match="4 views; room was made for 3"):
        check_view_values("block_select", kv.views, kv.view_start, shape, max_views=3)
    kv.views[2, 1] = 9
    with pytest.raises(KernelInputError, match=r"view 2 .*\[2, 9, 16, 32\]"):
        check_view_values("block_select", kv.views, kv.view_start, shape)


@pytest.mark.parametrize(
    ("numbers", "word"),
    [
        ({"top_k": -1, "sink": 1, "recent": 1}, "top_k -1"),
        ({"top_k": 0, "sink": 0, "recent": 0}, "all zero"),
        ({"top_k": 2, "sink": 2, "recent": 1}, "selection.views"),
    ],
)
def test_numbers_that_make_no_list_are_refused(numbers: dict[str, Any], word: str) -> None:
    kv = PagedKv([_row(2)], [32])
    selection = make_selection(1, kv.kv_heads, 2, top_k=2, sink=1, recent=1, device="cpu")
    arguments = (kv.query, _bounds(kv), kv.views, kv.view_start, kv.query_position, kv.rope, selection)
    with pytest.raises(KernelInputError, match=f"block_select: .*{word}"):
        block_select(*arguments, **numbers)
