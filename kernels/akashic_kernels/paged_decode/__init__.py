"""Decode attention over paged KV in block-local RoPE; the MATH stands in README.md."""

from __future__ import annotations

from akashic_kernels.paged_decode.api import (
    DecodeWorkspace,
    make_workspace,
    paged_decode,
    paged_decode_selected,
    selected_tiles,
)

__all__ = ["DecodeWorkspace", "make_workspace", "paged_decode", "paged_decode_selected", "selected_tiles"]
