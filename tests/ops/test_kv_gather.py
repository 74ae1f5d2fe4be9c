"""Moves of pieces: every named piece arrives whole, no other is touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from akashic_kernels.errors import KernelInputError
from akashic_kernels.kv_gather import kv_gather, kv_scatter


def _pool(pieces: int, piece: tuple[int, ...], dtype: torch.dtype, device: str, seed: int) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    pool = torch.randint(-120, 120, (pieces, *piece), generator=made).to(dtype)
    return pool.to(device) if device == "cuda" else pool


def _host(pool: Tensor, device: str) -> Tensor:
    return pool.pin_memory() if device == "cuda" else pool


@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
@pytest.mark.parametrize("piece", [(4,), (16, 8), (3, 4), (2049, 4)])
def test_pieces_arrive_whole_and_others_stay(
    piece: tuple[int, ...], dtype: torch.dtype, backend: Any, device: str
) -> None:
    host = _host(_pool(9, piece, dtype, "cpu", 1), device)
    pages = _pool(7, piece, dtype, device, 2)
    before = pages.cpu().clone()
    host_index = torch.tensor([8, 0, 3, 3], device=device)
    page_index = torch.tensor([2, 6, 0, 5], device=device)
    kv_gather(host, host_index, pages, page_index, backend=backend)
    got = pages.cpu()
    assert torch.equal(got[[2, 6, 0, 5]], host[[8, 0, 3, 3]])
    assert torch.equal(got[[1, 3, 4]], before[[1, 3, 4]])


@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("programs", [1, 3, 100])
def test_what_is_scattered_comes_back_the_same_with_any_number_of_programs(
    programs: int, backend: Any, device: str
) -> None:
    pages = _pool(6, (4096, 2), torch.bfloat16, device, 3)
    kept = pages.clone()
    host = _host(_pool(11, (4096, 2), torch.bfloat16, "cpu", 4), device)
    other = host.clone()
    there = torch.tensor([10, 1, 4, 0, 7, 2], dtype=torch.int32, device=device)
    order = torch.tensor([3, 0, 5, 1, 4, 2], dtype=torch.int32, device=device)
    kv_scatter(pages, order, host, there, programs=programs, backend=backend)
    if device == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(host[[3, 5, 6, 8, 9]], other[[3, 5, 6, 8, 9]])
    pages.zero_()
    kv_gather(host, there, pages, order, programs=programs, backend=backend)
    assert torch.equal(pages, kept)


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_a_negative_source_leaves_its_piece_out(backend: Any, device: str) -> None:
    host = _host(_pool(9, (2049, 4), torch.bfloat16, "cpu", 7), device)
    pages = _pool(4, (2049, 4), torch.bfloat16, device, 8)
    before = pages.cpu().clone()
    host_index = torch.tensor([-1, 5, -1], device=device)
    kv_gather(host, host_index, pages, torch.tensor([0, 2, 3], device=device), backend=backend)
    got = pages.cpu()
    assert torch.equal(got[2], host[5])
    assert torch.equal(got[[0, 1, 3]], before[[0, 1, 3]])


def test_no_pieces_are_no_work(device: str) -> None:
    pages = _pool(2, (8,), torch.float32, device, 5)
    before = pages.clone()
    none = torch.empty(0, dtype=torch.int64, device=device)
    kv_gather(_host(_pool(2, (8,), torch.float32, "cpu", 6), device), none, pages, none, backend="triton")
    assert torch.equal(pages, before)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"host": torch.zeros(4, 9)}, "alike"),
        ({"host": torch.zeros(4, 8, dtype=torch.float16)}, "alike"),
        ({"host": torch.zeros(8, 4).T}, "contiguous"),
        ({"pages": torch.zeros(3, 7, dtype=torch.int8), "host": torch.zeros(3, 7, dtype=torch.int8)}, "words"),
        ({"host_index": torch.zeros(2, dtype=torch.float32)}, "host_index"),
        ({"page_index": torch.zeros(3, dtype=torch.int64)}, "2 pieces"),
        ({"programs": 0}, "programs"),
    ],
)
def test_wrong_moves_are_refused_by_name(change: dict[str, Any], word: str) -> None:
    index = torch.tensor([0, 1])
    arguments = {
        "host": torch.zeros(4, 8),
        "host_index": index,
        "pages": torch.zeros(3, 8),
        "page_index": index,
    } | change
    with pytest.raises(KernelInputError, match=word):
        kv_gather(**arguments)


@pytest.mark.gpu
def test_pageable_memory_is_refused() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    index = torch.tensor([0], device="cuda")
    with pytest.raises(KernelInputError, match="pinned"):
        kv_gather(torch.zeros(4, 8), index, torch.zeros(3, 8, device="cuda"), index)
