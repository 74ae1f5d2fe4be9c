"""Compiles kernels for a GPU where there is none: `python compile_kernels.py`; fails with the compiler's error.

Triton's interpreter runs what the compiler refuses (a `return` in a branch, tensors of no elements), so it alone says too
little. Every launch is compiled to machine code for compute capability 9.0, and none is made.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from akashic_kernels import backend
from akashic_kernels.block_select import block_select, make_selection
from akashic_kernels.block_summary import make_bounds, update_bounds
from akashic_kernels.paged_decode import make_workspace, paged_decode, paged_decode_selected
from paged_kv import PagedKv


class _NoGpu:
    """As much of Triton's driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only() -> list[str]:
    """Have launches compiled only, from CPU tensors; return where their names are gathered."""
    compiled: list[str] = []
    run = JITFunction.run

    def warm_up(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = run(self, *arguments, grid=grid, warmup=True, **options)
        assert made.asm["cubin"]
        compiled.append(self.fn.__name__)
        return made

    triton.runtime.driver.set_active(_NoGpu())
    JITFunction.run = warm_up
    backend.interpreted = lambda: True
    return compiled


def main() -> None:
    """Compile choice and attention for rows of each order of length, and print what was compiled."""
    compiled = compile_only()
    for pages in (3, 100, 1500, 5000):
        kv = PagedKv([[(page % 5, 0, 16, 16 * page) for page in range(pages)]], [16 * pages])
        bounds = make_bounds(len(kv.k_pages), kv.kv_heads, kv.head_dim, dtype=kv.dtype, device="cpu")
        update_bounds(bounds, kv.k_pages, torch.tensor([(0, 0, 16)], dtype=torch.int32), backend="triton")
        chosen = make_selection(1, kv.kv_heads, pages, top_k=2, sink=1, recent=1, device="cpu")
        arguments = (kv.query, bounds, kv.views, kv.view_start, kv.query_position, kv.rope)
        block_select(*arguments, chosen, top_k=2, backend="triton")
        for splits in (1, 40):
            room = make_workspace(1, kv.q_heads, kv.kv_heads, kv.head_dim, "cpu", splits=splits)
            paged_decode(
                kv.query, kv.k_pages, kv.v_pages, kv.views, kv.view_start, kv.query_position, kv.rope, workspace=room,
                backend="triton",
            )  # fmt: skip
            paged_decode_selected(
                kv.query, kv.k_pages, kv.v_pages, chosen.views, chosen.count, kv.query_position, kv.rope,
                workspace=room, backend="triton",
            )  # fmt: skip
    print(*compiled)


if __name__ == "__main__":
    main()
