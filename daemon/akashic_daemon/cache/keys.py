"""Paths as flat keys: tokens are themselves, each distinct operation is one negative number.

Two paths that agree up to an operation agree in what it does, so comparing keys compares tokens *and* operation history
(DESIGN section 4, matching).
"""

from __future__ import annotations

from array import array

import numpy as np

from akashic_daemon.program.path import Op, Path


class OpTable:
    """Numbers operations; equal operations get the same number."""

    def __init__(self) -> None:
        self._numbers: dict[Op, int] = {}
        self._ops: list[Op] = []

    def marker(self, op: Op) -> int:
        """Return the negative number of an operation."""
        number = self._numbers.get(op)
        if number is None:
            number = self._numbers[op] = len(self._ops)
            self._ops.append(op)
        return -1 - number

    def op(self, marker: int) -> Op:
        """Return the operation of a marker."""
        return self._ops[-1 - marker]

    def key(self, path: Path) -> array[int]:
        """Return a path's key."""
        if not path.ops:
            return path.tokens[:]
        key = array("i")
        at = 0
        for placed in path.ops:
            key.extend(path.tokens[at : placed.offset])
            key.append(self.marker(placed.op))
            at = placed.offset
        key.extend(path.tokens[at:])
        return key


def marker_places(key: array[int]) -> list[int]:
    """Return where operations stand in a key, ascending."""
    return np.flatnonzero(np.frombuffer(key, np.int32) < 0).tolist() if key else []


def token_count(key: array[int]) -> int:
    """Return how many entries of a key are tokens."""
    return len(key) - len(marker_places(key))


def key_length(key: array[int], tokens: int) -> int:
    """Return how much of a key covers its first `tokens` tokens."""
    at = tokens
    for place in marker_places(key):
        if place >= at:
            break
        at += 1
    return at
