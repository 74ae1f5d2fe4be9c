"""Tiles of paged KV in RAM that a step needs on the GPU: which lack, what makes way, and their copies (MATH: README.md)."""

from __future__ import annotations

from akashic_kernels.tile_cache.api import TileTables, make_tables, tile_admit, tile_fetch

__all__ = ["TileTables", "make_tables", "tile_admit", "tile_fetch"]
