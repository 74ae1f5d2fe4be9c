"""What Triton 3.6's interpreter lacks, so that kernels run in it as on a GPU: bf16 arithmetic and numpy 2.4.

The interpreter keeps bf16 as 16-bit integers. It multiplies those integers in a dot, casts integers to bf16 as if bf16
were one, and cuts where the hardware rounds to nearest. Numpy 2.4 no longer takes an array of one element for a loop's
bound. `repair` mends these four things, in the process that calls it.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def rounded_to_bf16(x: Any) -> Any:
    """Give the bits of float32 `x` rounded to the nearest bf16, ties to even; a NaN stays one."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def widened(bits: Any) -> Any:
    """Give bf16 bits as float32."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)


def repair() -> None:
    """Mend the interpreter; call it once, before a kernel runs."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    their_cast, their_dot, their_patch = builder.cast_impl, builder.create_dot, interpreter._patch_lang_tensor

    def as_float(value: Any) -> Any:
        if value.dtype.scalar != tl.bfloat16:
            return value
        return handle(widened(value.data), tl.float32)

    def cast(self: Any, source: Any, wanted: Any, *rest: Any) -> Any:
        # Types that agree say nothing otherwise: a comparison's booleans carry the type of what was compared.
        if source.dtype.scalar == wanted.scalar == tl.bfloat16:
            return source
        source = as_float(source)
        if wanted.scalar == tl.bfloat16:
            return handle(rounded_to_bf16(source.data.astype(np.float32)), tl.bfloat16)
        return their_cast(self, source, wanted)

    def dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return their_dot(self, as_float(a), as_float(b), d, *rest)

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        their_patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    for name in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc", "int_cast", "fp_to_fp"):
        setattr(builder, f"create_{name}", cast)
    builder.cast_impl = cast
    builder.create_dot = dot
    interpreter._patch_lang_tensor = patch_lang_tensor
