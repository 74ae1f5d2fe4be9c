"""Scattered pieces of KV between pinned host memory and GPU pages, one kernel a direction (MATH: README.md)."""

from __future__ import annotations

from akashic_kernels.kv_gather.api import kv_gather, kv_scatter

__all__ = ["kv_gather", "kv_scatter"]
