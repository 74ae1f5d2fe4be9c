"""Vectors of one namespace's texts: tokens weighted by how rare they are in it.

Document frequencies change while turns come; what was embedded is embedded anew each time their number has doubled, up
to a size at which they hardly change any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from akashic_daemon.memory.embedder import Embedder, TokenIds, Vectors
from akashic_daemon.store.memory.rows import EmbedderState

_MOST_UNKEPT_TURNS = 512
"""The counts take up to 250 KB, so they aren't written with each turn: a start counts what came since."""
SETTLED_TURNS = 1 << 13
"""From here on nothing is embedded anew."""


class TokenWeights:
    """How many turns have each token, and the weights that follow."""

    def __init__(self, embedder: Embedder, state: EmbedderState | None) -> None:
        self._embedder = embedder
        self.embedded_turns = 0 if state is None else state.turn_count
        """How many turns there were when all were embedded by the same weights."""
        self.counted_id: int | None = 0
        """The turns up to this id are counted; None: all that have a vector are, as older versions kept it."""
        self._is_kept = state is not None
        self._unkept_turns = 0
        self._counts = np.zeros(embedder.vocabulary_size, np.uint32)
        self._turns = 0
        self._weights: NDArray[np.float32] | None = None
        if state is not None:
            self._restore(state.body)

    def state(self, namespace: str) -> EmbedderState:
        """Return what is to be kept of it; it counts as kept."""
        self._is_kept, self._unkept_turns = True, 0
        return EmbedderState(namespace, self.embedded_turns, self._body())

    @property
    def is_to_keep(self) -> bool:
        """Tell if so much isn't kept that it should be; the first of it is kept at once, instead of another embedder's."""
        return not self._is_kept or self._unkept_turns >= _MOST_UNKEPT_TURNS

    @property
    def is_stale(self) -> bool:
        """Tell if the turns have doubled since all were embedded."""
        return self.embedded_turns < SETTLED_TURNS and self._turns >= 2 * self.embedded_turns

    def count(self, texts: Sequence[TokenIds]) -> None:
        """Count the tokens of new texts."""
        self._counts += self._having(texts)
        self._turns += len(texts)
        self._unkept_turns += len(texts)
        self._weights = None

    def uncount(self, texts: Sequence[TokenIds]) -> None:
        """Take the tokens of texts back that were counted."""
        self._counts -= np.minimum(self._counts, self._having(texts))
        self._turns = max(0, self._turns - len(texts))
        self._weights = None

    def embed(self, texts: Sequence[TokenIds]) -> Vectors:
        """Return the texts' vectors by the weights of now."""
        return self._embedder.pool(texts, self.weights)

    @property
    def weights(self) -> NDArray[np.float32]:
        """Each token's weight, its IDF."""
        if self._weights is None:
            self._weights = np.log1p((self._turns - self._counts + 0.5) / (self._counts + 0.5)).astype(np.float32)
        return self._weights

    def _having(self, texts: Sequence[TokenIds]) -> NDArray[np.uint32]:
        """Return how many of the texts have each token."""
        size = len(self._counts)
        whose = np.repeat(np.arange(len(texts), dtype=np.int64), [len(ids) for ids in texts])
        once = np.unique(whose * size + np.concatenate(texts)) if len(whose) else whose
        return np.bincount(once % size, minlength=size).astype(np.uint32)

    def _body(self) -> bytes:
        """Return the counts as bytes: how many turns, up to which, then each token that has any, and its count.

        Four numbers before the pairs, the last one 0; older versions had one, so theirs are an odd number of them.
        """
        tokens = np.flatnonzero(self._counts).astype("<u4")
        counted = self.counted_id or 0
        head = np.array([self._turns, counted & 0xFFFFFFFF, counted >> 32, 0], "<u4")
        return b"".join(part.tobytes() for part in (head, tokens, self._counts[tokens].astype("<u4")))

    def _restore(self, body: bytes) -> None:
        numbers = np.frombuffer(body, "<u4")
        head = 1 if len(numbers) % 2 else 4
        half = (len(numbers) - head) // 2
        self._turns = int(numbers[0])
        self.counted_id = None if head == 1 else int(numbers[1]) | int(numbers[2]) << 32
        self._is_kept = head > 1
        self._counts[numbers[head : head + half]] = numbers[head + half :]
