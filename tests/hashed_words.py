"""An embedder without files for tests of memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from akashic_daemon.memory.embedder import TokenIds, Vectors, pooled
from akashic_daemon.memory.words import terms


class HashedWords:
    """An embedder without files: each word has a random vector."""

    name = "hashed"
    dimensions = 32
    vocabulary_size = 997

    def __init__(self) -> None:
        table = np.random.default_rng(7).standard_normal((self.vocabulary_size, self.dimensions))
        self._table = table.astype(np.float16)

    def token_ids(self, texts: Sequence[str]) -> list[TokenIds]:
        known = [[sum(word.encode()) * 31 % self.vocabulary_size for word in terms(text)] for text in texts]
        return [np.array(ids, np.int32) for ids in known]

    def pool(self, ids: Sequence[TokenIds], weights: NDArray[np.float32] | None = None) -> Vectors:
        return pooled(self._table, ids, weights)
