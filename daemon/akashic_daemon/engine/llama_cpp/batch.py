"""A llama_batch over numpy arrays: filled with slices, not token by token."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp
import numpy as np

from akashic_daemon.engine.base import BatchItem


class NumpyBatch:
    """Room for `capacity` tokens, each in one sequence. Owns the memory that llama.cpp reads during decode.

    With `twin`, tokens of the first `twinned` sequences are in a second one too, whose id is that much higher.
    """

    def __init__(self, capacity: int, *, twin: int = 0, twinned: int = 0) -> None:
        self.capacity = capacity
        self._twin = twin
        self._twinned = twinned
        self._token = np.zeros(capacity, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._sequence_count = np.ones(capacity, np.int32)
        self._sequence = np.zeros((capacity, 2), np.int32)
        self._sequence_at = (self._sequence.ctypes.data + 8 * np.arange(capacity, dtype=np.uint64)).astype(np.uint64)
        self._logits = np.zeros(capacity, np.int8)
        self.rows: list[int] = []
        """For each item of the last `fill`, the batch row of its last token."""
        self.native = llama_cpp.llama_batch(
            0,
            self._pointer(self._token, ctypes.c_int32),
            None,
            self._pointer(self._position, ctypes.c_int32),
            self._pointer(self._sequence_count, ctypes.c_int32),
            ctypes.cast(self._sequence_at.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            self._pointer(self._logits, ctypes.c_int8),
        )

    @staticmethod
    def _pointer(array: np.ndarray, kind: type[ctypes._SimpleCData]) -> ctypes._Pointer:  # type: ignore[type-arg]
        return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

    def fill(self, items: Sequence[BatchItem]) -> int:
        """Lay out `items` and return the number of tokens; they must fit."""
        at = 0
        self.rows = []
        for item in items:
            count = len(item.tokens)
            end = at + count
            assert count > 0
            assert end <= self.capacity, (end, self.capacity)
            self._token[at:end] = item.tokens
            self._position[at:end] = np.arange(item.start, item.start + count, dtype=np.int32)
            self._sequence[at:end] = item.sequence, item.sequence + self._twin
            self._sequence_count[at:end] = 2 if item.sequence < self._twinned else 1
            self._logits[at:end] = item.all_logits
            self._logits[end - 1] |= item.logits
            self.rows.append(end - 1)
            at = end
        self.native.n_tokens = at
        return at
