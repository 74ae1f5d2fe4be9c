"""The greatest of each row: exactly torch's value, and the first place that has it."""

from __future__ import annotations

import pytest
import torch

from akashic_kernels.errors import KernelInputError
from akashic_kernels.row_best import RowBest, make_row_best, row_best
from akashic_kernels.row_best.api import BLOCK

INFINITY, NAN = float("inf"), float("nan")


def found(values: torch.Tensor, out: RowBest | None = None) -> tuple[list[float], list[int]]:
    rows = len(values)
    out = make_row_best(rows, values.device) if out is None else out
    out.greatest.fill_(NAN)
    out.place.fill_(-1)
    row_best(values, out, backend="triton")
    if values.is_cuda:
        torch.cuda.synchronize()
    return out.greatest[:rows].tolist(), out.place[:rows].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "wide"), [(1, 1), (3, 17), (2, BLOCK), (5, BLOCK + 1), (2, 3 * BLOCK + 1031)])
def test_value_and_first_place_are_the_rows(rows: int, wide: int, dtype: torch.dtype, device: str) -> None:
    made = torch.Generator().manual_seed(wide)
    values = torch.randn(rows, wide, generator=made).to(dtype)  # 16-bit values are often equal
    greatest, place = found(values.to(device))
    assert greatest == values.float().amax(1).tolist()
    first = [row.tolist().index(max(row.tolist())) for row in values]
    assert place == first


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_zeros_of_both_signs_infinities_and_nan_are_ordered(backend: str, device: str) -> None:
    rows = [
        [-1.0, -0.0, 0.0, -3.0],
        [-INFINITY, -INFINITY, -INFINITY, -INFINITY],
        [1.0, INFINITY, 2.0, INFINITY],
        [INFINITY, 1.0, NAN, NAN],
        [-2.5, -2.25, -3.0, -2.25],
    ]
    out = make_row_best(5, device)
    row_best(torch.tensor(rows, device=device), out, backend=backend)  # type: ignore[arg-type]
    greatest, place = out.greatest.tolist(), out.place.tolist()
    assert place == [1, 0, 1, 2, 1]
    assert greatest[:3] == [0.0, -INFINITY, INFINITY]
    assert greatest[3] != greatest[3]
    assert greatest[4] == -2.25


def test_rows_may_lie_apart_and_room_serves_again(device: str) -> None:
    out = make_row_best(4, device, on_host=device == "cuda")
    for seed in range(3):
        values = torch.randn(2, BLOCK + 70, generator=torch.Generator().manual_seed(seed)).to(device)
        part = values[:, : BLOCK + 5]
        assert found(part, out) == (part.amax(1).tolist(), part.argmax(1).tolist())
        assert not out.arrived.any()


def test_no_rows_give_no_rows(device: str) -> None:
    assert found(torch.zeros(0, 8, device=device)) == ([], [])


@pytest.mark.parametrize(
    ("values", "rows", "names"),
    [
        (torch.zeros(2, 8), 1, "room was made for 1 rows"),
        (torch.zeros(8, 2).T, 2, "dense rows"),
        (torch.zeros(2, 0), 2, "dense rows"),
        (torch.zeros(2, 8, dtype=torch.int32), 2, "values"),
    ],
)
def test_what_cant_be_is_refused(values: torch.Tensor, rows: int, names: str) -> None:
    with pytest.raises(KernelInputError, match=names):
        row_best(values, make_row_best(rows, "cpu"))
