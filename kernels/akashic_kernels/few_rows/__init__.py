"""Linear layers of few rows, with norm, gate and residual in the same launch; the MATH stands in README.md."""

from __future__ import annotations

from akashic_kernels.few_rows.api import MOST_ROWS, few_rows_linear

__all__ = ["MOST_ROWS", "few_rows_linear"]
