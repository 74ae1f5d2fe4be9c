"""The greatest number of each row and where it stands, written where the host can read it; the MATH stands in README.md."""

from __future__ import annotations

from akashic_kernels.row_best.api import RowBest, make_row_best, row_best

__all__ = ["RowBest", "make_row_best", "row_best"]
