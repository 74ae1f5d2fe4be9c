"""Eight-bit pages: the derived bound, the reference bit for bit, and odd rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from akashic_kernels.errors import KernelInputError
from akashic_kernels.kv_quant import dequantise_pages, quantise_pages
from kernel_bounds import half_unit, poisoned

UNIT = half_unit(torch.float32)


def _pages(dtype: torch.dtype, device: str, shape: tuple[int, ...] = (3, 2, 16, 80)) -> Tensor:
    made = torch.Generator().manual_seed(7)
    x = torch.randn(shape, generator=made) * torch.logspace(-20, 4, shape[2])[:, None]
    x[0, 0, 3] = 0
    x[1, 1, 5, 1:] = 0
    return x.to(dtype).to(device)


def _quantised(pages: Tensor, backend: Any) -> tuple[Tensor, Tensor]:
    device = str(pages.device)
    out = poisoned(*pages.shape, dtype=torch.int8, device=device)
    scale = poisoned(*pages.shape[:3], dtype=torch.float32, device=device)
    return quantise_pages(pages, out=out, scale=scale, backend=backend)


@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_each_element_is_within_the_derived_bound(dtype: torch.dtype, backend: Any, device: str) -> None:
    pages = _pages(dtype, device)
    stored, scale = _quantised(pages, backend)
    truth, steps = pages.cpu().double(), scale.cpu().double()[..., None]
    assert int(stored.min()) >= -127
    assert bool(((truth - stored.cpu().double() * steps).abs() <= steps * (0.5 + 382 * UNIT)).all())
    for wanted in (torch.bfloat16, torch.float32):
        back = dequantise_pages(stored, scale, out=poisoned(*pages.shape, dtype=wanted, device=device), backend=backend)
        most = steps * (0.5 + 382 * UNIT) + (half_unit(wanted) + UNIT) * (truth.abs() + steps)
        assert bool(((truth - back.cpu().double()).abs() <= most).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 2, 16, 16), (2, 2, 16, 24), (2, 3, 32, 256), (2, 2, 128, 128)])
def test_kernel_and_reference_agree_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    pages = _pages(dtype, device, shape)
    ours, reference = _quantised(pages, "triton"), _quantised(pages, "reference")
    assert torch.equal(ours[0], reference[0])
    assert torch.equal(ours[1], reference[1])
    back = [dequantise_pages(*ours, backend=backend) for backend in ("triton", "reference")]
    assert torch.equal(*back)


def test_a_row_of_zeros_stays_zeros_and_a_lone_number_is_kept(device: str) -> None:
    pages = _pages(torch.float32, device)
    stored, scale = _quantised(pages, "triton")
    assert not stored[0, 0, 3].any()
    assert float(scale[0, 0, 3]) == 0
    assert stored[1, 1, 5, 0].abs() == 127
    assert not dequantise_pages(stored, scale)[0, 0, 3].any()


def test_no_pages_give_none(device: str) -> None:
    stored, scale = quantise_pages(torch.empty(0, 2, 16, 32, device=device), backend="triton")
    assert stored.shape == (0, 2, 16, 32)
    assert dequantise_pages(stored, scale, backend="triton").shape == (0, 2, 16, 32)


def test_wrong_tensors_are_refused_by_name() -> None:
    pages = torch.zeros(2, 2, 16, 32)
    with pytest.raises(KernelInputError, match="pages must be contiguous"):
        quantise_pages(pages.transpose(2, 3))
    with pytest.raises(KernelInputError, match="pages must be"):
        quantise_pages(pages.to(torch.int32))
    with pytest.raises(KernelInputError, match="scale must have the shape"):
        quantise_pages(pages, scale=torch.zeros(2, 2, 15))
    with pytest.raises(KernelInputError, match="scale must be"):
        dequantise_pages(pages.to(torch.int8), torch.zeros(2, 2, 16, dtype=torch.float64))
