"""Pages in eight bits and back, one scale for each token and KV head (MATH: README.md)."""

from __future__ import annotations

from akashic_kernels.kv_quant.api import dequantise_pages, quantise_pages

__all__ = ["dequantise_pages", "quantise_pages"]
