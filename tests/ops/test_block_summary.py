"""Bounds of keys: exact for floats, outwards for int8, the same in one run or token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from akashic_kernels.block_summary import make_bounds, update_bounds
from akashic_kernels.errors import KernelInputError
from kernel_bounds import poisoned
from paged_kv import PagedKv


def _kv(device: str, **changes: Any) -> PagedKv:
    rows = [[(0, 0, 16, 0), (1, 0, 16, 16), (2, 0, 5, 32)]]
    return PagedKv(rows, [36], device=device, **changes)


def _runs(runs: list[tuple[int, int, int]], device: str) -> torch.Tensor:
    return torch.tensor(runs, dtype=torch.int32, device=device).view(-1, 3)


def _poisoned_bounds(kv: PagedKv, dtype: torch.dtype) -> torch.Tensor:
    return poisoned(kv.k_pages.shape[0], kv.kv_heads, 2, kv.head_dim, dtype=dtype, device=kv.device)


@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", [32, 40])
def test_bounds_are_the_least_and_greatest_stored_values(
    backend: Any, dtype: torch.dtype, head_dim: int, device: str
) -> None:
    kv = _kv(device, dtype=dtype, head_dim=head_dim, rotary_dim=32)
    bounds = _poisoned_bounds(kv, dtype)
    update_bounds(bounds, kv.k_pages, _runs([(2, 0, 5), (0, 0, 16), (0, 0, 0)], device), backend=backend)
    for page, length in ((0, 16), (2, 5)):
        keys = kv.k_pages[page, :, :length]
        assert torch.equal(bounds[page, :, 0], keys.amin(1))
        assert torch.equal(bounds[page, :, 1], keys.amax(1))
    assert bool(bounds[1].isnan().all())


def test_token_by_token_gives_the_bounds_of_one_run(device: str) -> None:
    kv = _kv(device)
    at_once, stepwise = (_poisoned_bounds(kv, kv.dtype) for _ in range(2))
    update_bounds(at_once, kv.k_pages, _runs([(0, 0, 16), (2, 0, 5)], device), backend="triton")
    for slot in range(16):
        runs = [(0, slot, 1), (2, slot, 1 if slot < 5 else 0)]
        update_bounds(stepwise, kv.k_pages, _runs(runs, device), backend="triton")
    assert torch.equal(at_once[0], stepwise[0])
    assert torch.equal(at_once[2], stepwise[2])


def test_a_run_from_slot_0_forgets_what_the_page_held_before(device: str) -> None:
    kv = _kv(device)
    bounds = torch.full_like(_poisoned_bounds(kv, kv.dtype), 1000.0)
    update_bounds(bounds, kv.k_pages, _runs([(1, 0, 1)], device), backend="triton")
    assert torch.equal(bounds[1, :, 0], kv.k_pages[1, :, 0])
    assert torch.equal(bounds[1, :, 1], kv.k_pages[1, :, 0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bounds_of_int8_pages_hold_every_key_and_are_tight(dtype: torch.dtype, device: str) -> None:
    kv = _kv(device, quantised=True)
    assert kv.k_scale is not None
    got = []
    for backend in ("triton", "reference"):
        bounds = _poisoned_bounds(kv, dtype)
        update_bounds(bounds, kv.k_pages, _runs([(0, 0, 16)], device), k_scale=kv.k_scale, backend=backend)
        got.append(bounds[0])
    assert torch.equal(got[0], got[1])
    keys = kv.k_pages[0].float() * kv.k_scale[0, :, :, None]
    low, high = got[0][:, 0].float(), got[0][:, 1].float()
    assert bool((low[:, None] <= keys).all())
    assert bool((high[:, None] >= keys).all())
    room = 0.0 if dtype == torch.float32 else 2.0**-6
    assert bool((keys.amin(1) - low <= keys.amin(1).abs() * room).all())
    assert bool((high - keys.amax(1) <= keys.amax(1).abs() * room).all())


@pytest.mark.parametrize(
    ("dtype", "pages", "word"), [(torch.float16, 3, "float16"), (torch.bfloat16, 2, "shape"), (torch.int32, 3, "int32")]
)
def test_bounds_of_another_kind_or_size_are_refused(dtype: torch.dtype, pages: int, word: str) -> None:
    kv = _kv("cpu")
    bounds = make_bounds(pages, kv.kv_heads, kv.head_dim, dtype=dtype, device="cpu")
    with pytest.raises(KernelInputError, match=rf"block_summary: .*{word}"):
        update_bounds(bounds, kv.k_pages, _runs([], "cpu"))
