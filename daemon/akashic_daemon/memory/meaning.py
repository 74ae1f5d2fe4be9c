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

SETTLED_TURNS = 1 << 13
"""From here on nothing is embedded anew."""


class TokenWeights:
    """How many turns have each token, and the weights that follow."""

    def __init__(self, embedder: Embedder, state: EmbedderState | None) -> None:
        self._embedder = embedder
        self.embedded_turns = 0 if state is None else state.turn_count
        """How many turns there were when all were embedded by the same weights."""
        self._counts = np.zeros(embedder.vocabulary_size, np.uint32)
        self._turns = 0
        self._weights: NDArray[np.float32] | None = None
        if state is not None:
            self._restore(state.body)

    def state(self, namespace: str) -> EmbedderState:
        """Return what is to be kept of it."""
        return EmbedderState(namespace, self.embedded_turns, self._body())

    @property
    def is_stale(self) -> bool:
        """Tell if the turns have doubled since all were embedded."""
        return self.embedded_turns < SETTLED_TURNS and self._turns >= 2 * self.embedded_turns

    def count(self, texts: Sequence[TokenIds]) -> None:
        """Count the tokens of new texts."""
        self._counts += self._having(texts)
        self._turns += len(texts)
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
        """Return the counts as bytes: the number of turns, then each token that has any, and its count."""
        tokens = np.flatnonzero(self._counts).astype("<u4")
        head = np.array([self._turns], "<u4")
        return b"".join(part.tobytes() for part in (head, tokens, self._counts[tokens].astype("<u4")))

    def _restore(self, body: bytes) -> None:
        numbers = np.frombuffer(body, "<u4")
        half = (len(numbers) - 1) // 2
        self._turns = int(numbers[0])
        self._counts[numbers[1 : 1 + half]] = numbers[1 + half :]
