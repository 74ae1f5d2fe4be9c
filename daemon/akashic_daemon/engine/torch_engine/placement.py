"""Which device computes which layers: one run of layers each, so that their weights and KV fit into what is free there.

All runs share one page table, so a cell takes room on every device. Nothing here allocates or asks a device anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture


@dataclass(frozen=True, slots=True)
class LayerRun:
    """`count` layers from `first` on, on one device."""

    device: torch.device
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a model takes: of a layer's weights, of a KV cell in one layer, and beside the layers.

    embedding: on the first device. head: on the last, the norm included; where it is the embedding itself, a copy of it.
    """

    layers: int
    layer: int
    cell: int
    embedding: int
    head: int
    tied: bool

    @classmethod
    def of(cls, shape: Architecture, weight_bytes: int, value_bytes: int) -> Need:
        """Return the need of a model whose numbers are so wide."""
        matrix = shape.vocabulary_size * shape.width * weight_bytes
        beside = matrix if shape.tied else 2 * matrix
        layer = (shape.parameters * weight_bytes - beside) // shape.layers
        return cls(
            shape.layers, layer, shape.kv_bytes_per_token(value_bytes) // shape.layers, matrix, matrix, shape.tied
        )

    @property
    def weights(self) -> int:
        """Bytes of the weights on one device."""
        return self.embedding + (0 if self.tied else self.head) + self.layers * self.layer


def divide(rooms: Sequence[int], need: Need, cells: int) -> list[int] | None:
    """Return how many layers each device takes, in proportion to its bytes of room; None when they don't fit.

    The embedding stands with the first layer and the head with the last, so a device that takes no layer holds nothing. As
    many neighbouring devices share as can.
    """
    count = len(rooms)
    for width in range(count, 0, -1):
        for first in range(count - width + 1):
            counts = _filled(rooms[first : first + width], need, cells)
            if counts is not None:
                return [0] * first + counts + [0] * (count - width - first)
    return None


def _filled(rooms: Sequence[int], need: Need, cells: int) -> list[int] | None:
    """Divide so that the first and the last device take layers; None when that can't be."""
    left = list(rooms)
    left[0] -= need.embedding
    left[-1] -= 0 if need.tied and len(rooms) == 1 else need.head
    whole, size = list(left), need.layer + cells * need.cell
    counts = [0] * len(rooms)
    ends = sorted({0, len(rooms) - 1})
    if need.layers < len(ends):
        return None
    for number in range(need.layers):
        fitting = ends[number : number + 1] or range(len(rooms))
        fitting = [n for n in fitting if left[n] >= size]
        if not fitting:
            return None
        most = max(fitting, key=lambda n: left[n] / whole[n])
        left[most] -= size
        counts[most] += 1
    return counts


def most_cells(rooms: Sequence[int], need: Need) -> int:
    """Return how many KV cells fit beside the weights at most; -1 when not even the weights do."""
    if divide(rooms, need, 0) is None:
        return -1
    low, high = 0, sum(rooms) // need.cell + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if divide(rooms, need, middle) is not None else (low, middle)
    return low


def runs_of(devices: Sequence[torch.device], counts: Sequence[int]) -> tuple[LayerRun, ...]:
    """Return the runs of devices that take so many layers each; those that take none have none."""
    runs: list[LayerRun] = []
    first = 0
    for device, count in zip(devices, counts, strict=True):
        if count:
            runs.append(LayerRun(device, first, count))
        first += count
    return tuple(runs)


def described(runs: Sequence[LayerRun]) -> str:
    """Return the map in words."""
    return ", ".join(f"{run.device} layers {run.first} to {run.first + run.count - 1}" for run in runs)
