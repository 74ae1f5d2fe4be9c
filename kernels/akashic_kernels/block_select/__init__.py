"""Choice of the views that a sparse decode step reads, for each KV head; the MATH stands in README.md."""

from __future__ import annotations

from akashic_kernels.block_select.api import Selection, block_select, make_selection

__all__ = ["Selection", "block_select", "make_selection"]
