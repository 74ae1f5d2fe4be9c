"""Rotary positions as all ops see them: the exact phase, both pairings, rotation of part of a head.

MATH. A rotation by a position p turns pair i by the angle p * f_i, f_i = `inv_freq[i]` as the float32 that it is.
In float32 the product is off by up to half a unit in its last place: 0.03 rad at p = 1,000,000. So the kernels count in
*turns* of 64-bit fixed point: `phase_step[i]` = round(f_i / 2pi * 2^64), and p * phase_step[i] modulo 2^64 is the angle's
fraction of a turn. The step is off by at most 2^-53 relative, so the angle by |p| f_i 2^-53 rad: under 2^-32 rad up to
p = 2^21, on whole turns that integers drop exactly. Cosine and sine come from Taylor polynomials on [-pi/4, pi/4],
whose cut is under 2^-28. Negative p are as good as positive ones.

The pairings: "half" pairs dimension i with i + rotary_dim / 2 (NeoX, Hugging Face), "interleaved" 2i with 2i + 1
(llama.cpp's NORM). Dimensions from rotary_dim on are not turned. `attention_scale` (YaRN) multiplies cosine and sine
of the turned dimensions, in stored keys as in queries.
"""

from __future__ import annotations

from akashic_kernels.rope.api import Layout, Rope, make_rope

__all__ = ["Layout", "Rope", "make_rope"]
