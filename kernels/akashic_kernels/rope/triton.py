"""Rotation inside Triton kernels: the exact phase and its cosine and sine (MATH: this package's docstring)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def phase_cos_sin(phase):
    """Give float32 cosine and sine of int64 `phase`, the fraction of a turn times 2^64."""
    turn = (phase >> 32).to(tl.int32)
    quadrant = (turn + 0x20000000) >> 30
    x = (turn - (quadrant << 30)).to(tl.float32) * 1.4629180792671596e-09  # 2 pi / 2^32
    z = x * x
    sin = x + x * z * (-1.6666666667e-01 + z * (8.3333333333e-03 + z * (-1.9841269841e-04 + z * 2.7557319224e-06)))
    cos = -1.3888888889e-03 + z * (2.4801587302e-05 - z * 2.7557319224e-07)
    cos = 1.0 + z * (-0.5 + z * (4.1666666667e-02 + z * cos))
    odd = (quadrant & 1) == 1
    cos_there = tl.where(odd, sin, cos)
    sin_there = tl.where(odd, cos, sin)
    return (
        tl.where(((quadrant + 1) & 2) == 0, cos_there, -cos_there),
        tl.where((quadrant & 2) == 0, sin_there, -sin_there),
    )


@triton.jit
def pair_of(dim, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Give for each head dimension its partner, its pair's index, and whether it is the pair's second half.

    Those of dimensions from ROTARY on are without meaning, though inside a head's room; their coefficients are 1 and 0.
    """
    HALF: tl.constexpr = ROTARY // 2
    if INTERLEAVED:
        partner = dim ^ 1
        index = (dim >> 1) % HALF
        second = (dim & 1) == 1
    else:
        # Remainders, not choices: the compiler then sees that neighbours have neighbours as partners.
        second = dim >= HALF
        partner = (dim + HALF) % ROTARY
        index = dim % HALF
    return partner, index, second


@triton.jit
def turn_coefficients(delta, step, second, turned, attention_scale):
    """Give c, s with rotated[d] = c[d] * x[d] + s[d] * x[partner(d)], for a turn by integer `delta` positions.

    `step` int64: phase_step of each dimension's pair; `delta` broadcasts against it. Unturned dimensions get 1, 0.
    """
    cos, sin = phase_cos_sin(delta.to(tl.int64) * step)
    c = tl.where(turned, cos * attention_scale, 1.0)
    s = tl.where(turned, tl.where(second, sin, -sin) * attention_scale, 0.0)
    return c, s


@triton.jit
def pair_offsets(pair, ROTARY: tl.constexpr, HEAD_DIM: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Give where each pair's first and second dimension stand, for kernels that hold a head as two halves.

    Dimensions from ROTARY on are paired as well, and not turned.
    """
    if INTERLEAVED:
        first = pair * 2
        second = first + 1
    elif ROTARY == HEAD_DIM:
        first = pair
        second = pair + HEAD_DIM // 2
    else:
        turned = pair < ROTARY // 2
        first = tl.where(turned, pair, pair + ROTARY // 2)
        second = first + tl.where(turned, ROTARY // 2, (HEAD_DIM - ROTARY) // 2)
    return first, second
