"""Texts as vectors: the contract, and pooling. Knows no model's files; vectors of equal texts are equal, batch or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
TokenIds = NDArray[np.int32]

_PART_IDS = 2048


class Embedder(Protocol):
    """A model that gives texts vectors."""

    @property
    def name(self) -> str:
        """What requests call it."""

    @property
    def dimensions(self) -> int:
        """Length of its vectors."""

    @property
    def vocabulary_size(self) -> int:
        """How many token ids there are."""

    def token_ids(self, texts: Sequence[str]) -> list[TokenIds]:
        """Return each text's ids, unpadded; an empty text has none."""

    def pool(self, ids: Sequence[TokenIds], weights: NDArray[np.float32] | None = None) -> Vectors:
        """Return a vector of length 1 for each text's ids, float32 (texts, dimensions); zeros where it has none.

        weights: one for each id of the vocabulary, such as its IDF; equal when None.
        """


def pooled(table: NDArray[np.float16], ids: Sequence[TokenIds], weights: NDArray[np.float32] | None = None) -> Vectors:
    """Return the weighted means of rows of `table`, (vocabulary, dimensions), as vectors of length 1.

    Each text is summed by itself, in the order of its ids, so that its vector doesn't depend on its neighbours.
    """
    out = np.zeros((len(ids), table.shape[1]), np.float32)
    sizes = np.array([len(text) for text in ids], np.int64)
    plain = np.asarray(table)
    for some in _parts(sizes):
        whole = np.concatenate([ids[row] for row in some])
        rows = plain[whole].astype(np.float32)
        if weights is not None:
            rows *= weights[whole][:, None]
        starts = np.concatenate([[0], np.cumsum(sizes[some])[:-1]])
        out[some] = np.add.reduceat(rows, starts, axis=0) / sizes[some, None].astype(np.float32)
    return unit(out)


def _parts(sizes: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Return the texts that have ids, in parts whose rows fit a processor's cache."""
    some = np.flatnonzero(sizes)
    if not len(some):
        return []
    part = np.cumsum(sizes[some]) // _PART_IDS
    return np.split(some, np.flatnonzero(np.diff(part)) + 1)


def unit(vectors: Vectors) -> Vectors:
    """Return the vectors at length 1; one of zeros stays so."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    out = np.zeros_like(vectors)
    np.divide(vectors, length, out=out, where=length > 0)
    return out


def shortened(vectors: Vectors, dimensions: int) -> Vectors:
    """Return the first dimensions, at length 1: models of nested dimensions keep most of the meaning there."""
    return unit(np.ascontiguousarray(vectors[:, :dimensions]))
