"""Rotation: the fixed-point phase against float64, both pairings, part of a head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from akashic_kernels.errors import KernelInputError
from akashic_kernels.rope import Layout, make_rope
from akashic_kernels.rope.reference import cos_sin, rotate
from akashic_kernels.rope.triton import pair_of, turn_coefficients
from kernel_bounds import assert_within_bound, poisoned


@triton.jit  # type: ignore[untyped-decorator]
def _turn(x, out, step, position, scale, D: tl.constexpr, ROTARY: tl.constexpr, INTER: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    d = tl.arange(0, D)
    partner, index, second = pair_of(d, ROTARY, INTER)
    c, s = turn_coefficients(tl.load(position + row), tl.load(step + index), second, d < ROTARY, scale)
    value = tl.load(x + row * D + d) * c + tl.load(x + row * D + partner) * s
    tl.store(out + row * D + d, value)


def _inv_freq(rotary_dim: int, base: float = 500000.0) -> torch.Tensor:
    return base ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (64, 32), (128, 128)])
def test_a_turn_is_exact_to_float32_for_any_position_up_to_two_millions(
    layout: Layout, head_dim: int, rotary_dim: int, device: str
) -> None:
    positions = [0, 1, 127, 128, 32769, 131071, 1_000_003, 2**21 - 1, -1, -40009, -(2**20)]
    torch.manual_seed(1)
    x = torch.randn(len(positions), head_dim, device=device)
    rope = make_rope(_inv_freq(rotary_dim), layout=layout, attention_scale=1.25, device=device)
    position = torch.tensor(positions, dtype=torch.int32, device=device)
    out = poisoned(*x.shape, dtype=torch.float32, device=device)
    _turn[(len(positions),)](x, out, rope.phase_step, position, 1.25, head_dim, rotary_dim, layout == "interleaved")
    truth = rotate(x, position, rope, torch.float64)
    assert_within_bound(out, rotate(x, position, rope, torch.float32), truth)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_turns_add_up_and_keep_what_is_not_turned(layout: Layout) -> None:
    rope = make_rope(_inv_freq(32), layout=layout)
    x = torch.randn(5, 48, dtype=torch.float64)
    once = rotate(rotate(x, torch.tensor(70), rope, torch.float64), torch.tensor(-30), rope, torch.float64)
    torch.testing.assert_close(once, rotate(x, torch.tensor(40), rope, torch.float64))
    assert torch.equal(once[:, 32:], x[:, 32:])


def test_the_pairings_differ_only_in_the_order_of_dimensions() -> None:
    half, interleaved = (make_rope(_inv_freq(16), layout=layout) for layout in ("half", "interleaved"))
    x = torch.randn(3, 16, dtype=torch.float64)
    order = torch.arange(16).view(8, 2).T.flatten()
    position = torch.tensor([1, 5, 9])
    assert torch.equal(
        rotate(x, position, interleaved, torch.float64)[:, order], rotate(x[:, order], position, half, torch.float64)
    )


def test_the_attention_scale_multiplies_cosine_and_sine() -> None:
    plain, scaled = (make_rope(_inv_freq(8), attention_scale=scale) for scale in (1.0, 1.5))
    for one, other in zip(cos_sin(plain, torch.arange(4)), cos_sin(scaled, torch.arange(4)), strict=True):
        assert torch.equal(one * 1.5, other)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"inv_freq": torch.ones(4, dtype=torch.float64)}, "float32"),
        ({"inv_freq": torch.ones(2, 2)}, "one dimension"),
        ({"inv_freq": torch.tensor([float("nan")])}, "finite"),
        ({"inv_freq": torch.tensor([4.0])}, "half a circle"),
        ({"inv_freq": torch.ones(4), "layout": "neox"}, "neox"),
        ({"inv_freq": torch.ones(4), "attention_scale": 0.0}, "attention_scale"),
    ],
)
def test_wrong_rotary_parameters_are_refused_by_name(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(KernelInputError, match=word):
        make_rope(**arguments)
