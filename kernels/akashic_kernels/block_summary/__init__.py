"""Bounds of the keys of each page and KV head, kept up as tokens are appended; the MATH stands in README.md."""

from __future__ import annotations

from akashic_kernels.block_summary.api import make_bounds, update_bounds

__all__ = ["make_bounds", "update_bounds"]
