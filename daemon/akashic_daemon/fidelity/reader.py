"""Reads what a model expects at the tokens of a path, computing as the step loop does: through a radix index.

A token that is asked about is always computed anew, also when its KV is there, and always in pieces that begin at the
same place, so that variants are compared in equal batch shapes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from akashic_daemon.cache.index import NoRoom, RadixIndex
from akashic_daemon.engine.base import BatchItem, FloatArray, ReadableEngine
from akashic_daemon.program.path import Path

PIECE_TOKENS = 128
"""Most tokens in one decode; 128 rows of a vocabulary of 49,152 take 25 MB."""


class TimeOver(Exception):
    """Who asked for the reading wants no more of it; what was read of this path is of no use."""


class LogitsReader:
    """Computes on `engine`, which nobody else may use meanwhile.

    cells: how many to keep computed. What is beyond the paths in use costs attention time though nobody sees it, so
    this should be little more than they need. is_over: asked before each piece; then `read` raises TimeOver.
    """

    def __init__(self, engine: ReadableEngine, cells: int, is_over: Callable[[], bool] = lambda: False) -> None:
        able = engine.capabilities
        self._engine = engine
        self._index = RadixIndex(
            engine,
            cells_total=min(cells, able.kv_cells),
            sequences_total=able.max_sequences,
            keep_dropped=False,
        )
        self._is_over = is_over
        self.computed_tokens = 0

    def read(self, path: Path, first: int, end: int) -> FloatArray:
        """Return the logits after each of the tokens first..end-1 of `path`: [end - first, vocabulary].

        No operation may stand between them. Raises NoRoom when the cells don't suffice, TimeOver when time is.
        """
        key = self._index.ops.key(path.prefix(end))
        limit = len(key) - (end - first)
        found: list[FloatArray] = []
        sequence, _ = self._index.start(key, limit)
        try:
            while (work := self._index.advance(sequence, key, limit)) is not None:
                if self._is_over():
                    raise TimeOver
                wanted = work.start >= limit
                stop = min(work.end, work.start + PIECE_TOKENS, work.end if wanted else max(limit, work.start))
                tokens = key[work.start : stop]
                if not self._index.make_room(len(tokens)):
                    raise NoRoom(len(tokens))
                self._engine.decode([BatchItem(work.sequence, tokens, work.position, logits=wanted, all_logits=wanted)])
                self._index.extend(sequence, tokens)
                self.computed_tokens += len(tokens)
                if wanted:
                    found.append(self._engine.logits(0))
        finally:
            self._index.finish(sequence)
        return np.concatenate(found) if len(found) > 1 else found[0]

    def forget(self) -> None:
        """Let go of everything that is computed."""
        self._index.clear()
