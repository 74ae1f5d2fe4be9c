"""New keys and values into their pages: turned by slot, written, quantised, with the pages' bounds (MATH: README.md)."""

from __future__ import annotations

from akashic_kernels.rope_append.api import rope_append

__all__ = ["rope_append"]
