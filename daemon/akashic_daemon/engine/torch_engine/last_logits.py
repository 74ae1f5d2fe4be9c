"""The logits of the last step, on the device; what samplers ask of them is worked out once for all rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from akashic_daemon.engine.base import BatchItem, FloatArray
from akashic_daemon.errors import EngineError

Doubles = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Best = Callable[[], tuple[list[float], list[int]]]
"""Waits for each row's greatest logit and its token."""


class LastLogits:
    """`values` [rows, vocabulary]: the rows that the batch's items asked for, in their order.

    best: where they are found already. Waits for them. Raises EngineError when any row's greatest logit isn't a number: then
    the model computed nonsense.
    """

    def __init__(self, batch: Sequence[BatchItem], values: torch.Tensor, best: Best | None = None) -> None:
        self._values = values
        self._rows: list[range] = []
        greatest, self._best = _found(values) if best is None else best()
        if not all(map(math.isfinite, greatest)):
            raise EngineError(
                "the model's logits are not numbers",
                hint="its values overflow in 16 bits: set model.kv_type to f32, or the weights are broken",
            )
        self._top: dict[int, tuple[Doubles, Longs]] = {}
        first = 0
        for item in batch:
            count = len(item.tokens) if item.all_logits else int(item.logits)
            self._rows.append(range(first, first + count))
            first += count

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are."""
        return int(self._values.shape[1])

    def row(self, item: int) -> torch.Tensor:
        """Return the last row of an item; don't change it."""
        return self._values[self._last(item)]

    def best(self, item: int) -> int:
        """Return the token with the greatest logit in the last row of an item."""
        return self._best[self._last(item)]

    def top(self, item: int, count: int) -> tuple[Doubles, Longs]:
        """Return the greatest logits of the last row of an item, descending, and their tokens."""
        if count not in self._top:
            found = torch.topk(self._values.float(), count, dim=1)
            self._top[count] = (found.values.double().cpu().numpy(), found.indices.cpu().numpy())
        values, tokens = self._top[count]
        last = self._last(item)
        return values[last], tokens[last]

    def copied(self, item: int) -> FloatArray:
        """Return a copy of all rows of an item."""
        rows = self._rows[item]
        found: FloatArray = self._values[rows.start : rows.stop].float().cpu().numpy().copy()
        return found

    def _last(self, item: int) -> int:
        rows = self._rows[item]
        if not rows:
            raise EngineError(f"reading the logits of batch item {item}: the batch didn't ask for them")
        return rows[-1]


def _found(values: torch.Tensor) -> tuple[list[float], list[int]]:
    best = values.max(dim=1)
    # Both in one copy, as each waits for the device; token ids are exact in float64.
    greatest, tokens = torch.stack((best.values.double(), best.indices.double())).tolist()
    return greatest, [int(token) for token in tokens]
