"""Copying pieces in torch: the definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def copy_pieces(source: Tensor, source_index: Tensor, target: Tensor, target_index: Tensor) -> None:
    """Let target[target_index[i]] be source[source_index[i]] for each i whose source index isn't negative."""
    named = source_index >= 0
    source_index, target_index = source_index[named], target_index[named]
    picked = source[source_index.to(device=source.device)]
    target[target_index.to(device=target.device)] = picked.to(target.device)
