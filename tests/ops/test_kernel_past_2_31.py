"""Pools of more than 2^31 elements: every offset in a kernel must be 64 bits wide. On a GPU only, for want of memory."""

from __future__ import annotations

import pytest
import torch

from akashic_kernels.block_select import block_select, make_selection
from akashic_kernels.block_summary import make_bounds, update_bounds
from akashic_kernels.paged_decode import make_workspace, paged_decode, paged_decode_selected
from kernel_bounds import assert_within_bound
from paged_kv import PagedKv, attention_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def far() -> PagedKv:
    """Small KV whose pages are then moved to the end of a pool past 2^31 elements."""
    rows = [[(0, 0, 128, 0), (1, 3, 99, 128), (2, 0, 128, 256)]]
    kv = PagedKv(rows, [400], head_dim=128, q_heads=8, kv_heads=8, page_size=128, device="cuda")
    pages = 2**31 // (8 * 128 * 128) + 8
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB of free GPU memory")
    for name in ("k_pages", "v_pages"):
        pool = torch.full((pages, 8, 128, 128), float("nan"), dtype=kv.dtype, device="cuda")
        pool[-3:] = getattr(kv, name)
        assert pool.numel() > 2**31
        setattr(kv, name, pool)
    kv.views[:, 0] += pages - 3
    kv.rows = [[(page + pages - 3, *rest) for page, *rest in rows[0]]]  # type: ignore[misc]
    return kv


def test_decode_reads_pages_past_2_31_elements(far: PagedKv) -> None:
    workspace = make_workspace(1, 8, 8, 128, "cuda", splits=2)
    out = paged_decode(
        far.query,
        far.k_pages,
        far.v_pages,
        far.views,
        far.view_start,
        far.query_position,
        far.rope,
        workspace=workspace,
    )
    lists = [[row] for row in far.rows]
    truth, _ = attention_of(far, lists, torch.float64, torch.float64)
    assert_within_bound(out, attention_of(far, lists, torch.float32, far.dtype)[0], truth)


def test_bounds_choice_and_sparse_decode_reach_pages_past_2_31_elements(far: PagedKv) -> None:
    pages = far.k_pages.shape[0]
    bounds = make_bounds(pages * 8, 8, 128, dtype=far.dtype, device="cuda")[:pages]
    runs = torch.tensor([(page, offset, length) for page, offset, length, _ in far.rows[0]], dtype=torch.int32)
    runs[1, 1], runs[1, 2] = 3, 99
    bounds[pages - 2] = 0
    update_bounds(bounds, far.k_pages, runs.cuda())
    last = far.k_pages[-1]
    assert torch.equal(bounds[-1, :, 0], last.amin(1))
    assert torch.equal(bounds[-1, :, 1], last.amax(1))
    selection = make_selection(1, 8, 3, top_k=1, sink=1, recent=1, device="cuda")
    block_select(far.query, bounds, far.views, far.view_start, far.query_position, far.rope, selection, top_k=1)
    assert selection.index[0].tolist() == [[0, 1, 2]] * 8
    tail = (far.query_position, far.rope)
    sparse = paged_decode_selected(far.query, far.k_pages, far.v_pages, selection.views, selection.count, *tail)
    dense = paged_decode(far.query, far.k_pages, far.v_pages, far.views, far.view_start, *tail)
    assert torch.equal(sparse, dense)
