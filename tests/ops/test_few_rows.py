"""Linear layers of few rows: every combination of norm, gate, bias and residual, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from akashic_kernels.errors import KernelInputError
from akashic_kernels.few_rows import MOST_ROWS, few_rows_linear
from akashic_kernels.few_rows.reference import few_rows_reference
from kernel_bounds import assert_within_bound, poisoned

EPSILON = 1e-5


def case(
    rows: int, wide: int, features: int, dtype: torch.dtype, device: str, *, draw: int = 0, **what: bool
) -> dict[str, Any]:
    """Give arguments; `what` names the steps that are asked for."""
    made = torch.Generator().manual_seed(rows * 1000 + wide + 100_000 * draw)

    def some(*shape: int, scale: float = 1.0, mean: float = 0.0) -> torch.Tensor:
        return (mean + scale * torch.randn(shape, generator=made)).to(dtype).to(device)

    all_features = 2 * features if what.get("gated") else features
    return {
        "x": some(rows, wide, scale=3.0),
        "weight": some(all_features, wide, scale=wide**-0.5),
        "bias": some(all_features) if what.get("bias") else None,
        "norm": some(wide, scale=0.2, mean=1.0) if what.get("norm") else None,
        "epsilon": EPSILON,
        "gated": bool(what.get("gated")),
        "residual": some(rows, features) if what.get("residual") else None,
    }


def same_type(given: dict[str, Any]) -> torch.Tensor:
    """The separate layers as torch computes them, each rounded to the type."""
    x = given["x"]
    if given["norm"] is not None:
        x = torch.nn.functional.rms_norm(x, x.shape[-1:], given["norm"], given["epsilon"])
    y = torch.nn.functional.linear(x, given["weight"], given["bias"])
    if given["gated"]:
        gate, up = y.chunk(2, dim=-1)
        y = torch.nn.functional.silu(gate) * up
    return y if given["residual"] is None else y + given["residual"]


def check(given: dict[str, Any], got: torch.Tensor) -> None:
    truth = few_rows_reference(*given.values(), compute=torch.float64)
    assert_within_bound(got, same_type(given), truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "what",
    [
        {},
        {"norm": True, "bias": True},
        {"residual": True},
        {"norm": True, "gated": True},
        {"norm": True, "gated": True, "bias": True, "residual": True},
    ],
    ids=lambda what: "+".join(what) or "plain",
)
@pytest.mark.parametrize(("rows", "wide", "features"), [(1, 64, 16), (2, 129, 17), (3, 1031, 61), (4, 97, 33)])
def test_each_combination_is_within_its_bound(
    rows: int, wide: int, features: int, what: dict[str, bool], dtype: torch.dtype, device: str
) -> None:
    given = case(rows, wide, features, dtype, device, **what)
    out = poisoned(rows, features, dtype=dtype, device=device)
    got = few_rows_linear(**given, out=out, backend="triton")
    assert got is out
    check(given, got)


def test_halves_are_computed_as_wide_as_the_others(device: str) -> None:
    given = case(2, 129, 17, torch.float16, device, norm=True, gated=True, residual=True)
    check(given, few_rows_linear(**given, backend="triton"))


def test_one_input_and_one_feature_are_enough(device: str) -> None:
    """Many draws are held to one bound of their relative errors: one independent result may by luck be the exact one."""
    cases = [case(1, 1, 1, torch.float32, device, draw=draw, norm=True, gated=True) for draw in range(64)]
    got = torch.cat([few_rows_linear(**given, backend="triton") for given in cases])
    truth = torch.cat([few_rows_reference(*given.values(), compute=torch.float64) for given in cases])
    same = torch.cat([same_type(given) for given in cases])
    size = truth.abs()
    assert_within_bound(got.double() / size, same.double() / size, truth / size, rounded_to=torch.float32)


def test_rows_may_lie_apart_and_the_residual_may_be_the_output(device: str) -> None:
    given = case(2, 96, 24, torch.bfloat16, device, norm=True, residual=True)
    x, residual = torch.full((2, 200), 7.0), torch.full((2, 50), 9.0)
    x, residual = x.to(torch.bfloat16).to(device), residual.to(torch.bfloat16).to(device)
    x[:, :96], residual[:, :24] = given["x"], given["residual"]
    got = few_rows_linear(
        **{**given, "x": x[:, :96], "residual": residual[:, :24]}, out=residual[:, :24], backend="triton"
    )
    check(given, got)
    assert bool((residual[:, 24:] == 9.0).all())


def test_the_reference_is_what_the_kernel_is_held_against(device: str) -> None:
    given = case(3, 80, 12, torch.float32, device, norm=True, gated=True, residual=True)
    check(given, few_rows_linear(**given, backend="reference"))


def test_no_rows_give_no_rows(device: str) -> None:
    given = case(1, 32, 8, torch.float32, device)
    assert few_rows_linear(**{**given, "x": given["x"][:0]}, backend="triton").shape == (0, 8)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"x": torch.zeros(MOST_ROWS + 1, 32)}, "at most"),
        ({"x": torch.zeros(32, 2).T}, "dense rows"),
        ({"weight": torch.zeros(8, 33)}, "weight"),
        ({"weight": torch.zeros(8, 32, dtype=torch.bfloat16)}, "weight"),
        ({"bias": torch.zeros(7)}, "bias"),
        ({"norm": torch.zeros(31)}, "norm"),
        ({"residual": torch.zeros(2, 8)}, "residual"),
        ({"gated": True, "weight": torch.zeros(7, 32)}, "even"),
        ({"out": torch.zeros(8, 1).T.expand(1, 8), "residual": torch.zeros(1, 9)}, "residual"),
    ],
)
def test_what_cant_be_is_refused(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(KernelInputError, match=names):
        few_rows_linear(**{**case(1, 32, 8, torch.float32, "cpu"), **changes})
