"""Bars of blocks whose lengths are in proportion to counts; legible without colour."""

from __future__ import annotations

from collections.abc import Sequence


def cells_of(parts: Sequence[int], whole: int, width_cells: int) -> list[int]:
    """Return how many cells each part gets when `whole` is as long as `width_cells`.

    A part that isn't nothing gets a cell at least. The sum is the parts' total share, rounded, where that allows it.
    """
    if whole <= 0:
        return [0] * len(parts)
    exact = [part * width_cells / whole for part in parts]
    cells = [max(1, int(share)) if part else 0 for part, share in zip(parts, exact, strict=True)]
    wanted = round(sum(exact))
    order = sorted(range(len(parts)), key=lambda i: exact[i] - cells[i], reverse=True)
    for i in order:
        if sum(cells) >= wanted:
            break
        cells[i] += 1 if parts[i] else 0
    for i in reversed(order):
        while sum(cells) > wanted and cells[i] > 1:
            cells[i] -= 1
    return cells
