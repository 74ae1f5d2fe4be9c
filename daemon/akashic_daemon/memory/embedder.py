"""Texts as vectors: the contract, and pooling. Knows no model's files; vectors of equal texts are equal, batch or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
TokenIds = NDArray[np.int32]

_PART_IDS = 1 << 16
_ABREAST = 128
"""So many texts are summed together: their sums fit a processor's cache."""


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
    for some in _parts(sizes):
        rows, places = _rows(table, np.concatenate([ids[number] for number in some]), weights)
        own = sizes[some]
        begins = np.cumsum(own) - own
        by_size = np.argsort(-own, kind="stable")
        for first in range(0, len(by_size), _ABREAST):
            which = by_size[first : first + _ABREAST]
            out[some[which]] = _sums(rows, places, begins[which], own[which]) / own[which, None].astype(np.float32)
    return unit(out)


def _parts(sizes: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Return the texts that have ids, in parts of about _PART_IDS."""
    some = np.flatnonzero(sizes)
    if not len(some):
        return []
    part = np.cumsum(sizes[some]) // _PART_IDS
    return np.split(some, np.flatnonzero(np.diff(part)) + 1)


def _rows(
    table: NDArray[np.float16], ids: TokenIds, weights: NDArray[np.float32] | None
) -> tuple[Vectors, NDArray[np.intp]]:
    """Return the rows of the ids, each once and weighted, and where in them each id's is."""
    is_there = np.zeros(len(table), bool)
    is_there[ids] = True
    tokens = np.flatnonzero(is_there)
    rows = np.asarray(table)[tokens].astype(np.float32)
    if weights is not None:
        rows *= weights[tokens][:, None]
    place = np.empty(len(table), np.intp)
    place[tokens] = np.arange(len(tokens))
    return rows, place[ids]


def _sums(rows: Vectors, places: NDArray[np.intp], begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> Vectors:
    """Return the sum of each text's rows, the longest text first: all first tokens, then all second ones, and so on."""
    total = np.zeros((len(sizes), rows.shape[1]), np.float32)
    taken = np.empty_like(total)
    reaching = np.searchsorted(-sizes, -np.arange(1, sizes[0] + 1), side="right")
    for token, count in enumerate(reaching.tolist()):
        # "clip" spares the copy that numpy makes for indexes that may be wrong.
        np.take(rows, places[begins[:count] + token], axis=0, out=taken[:count], mode="clip")
        total[:count] += taken[:count]
    return total


def unit(vectors: Vectors) -> Vectors:
    """Return the vectors at length 1; one of zeros stays so."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    out = np.zeros_like(vectors)
    np.divide(vectors, length, out=out, where=length > 0)
    return out


def shortened(vectors: Vectors, dimensions: int) -> Vectors:
    """Return the first dimensions, at length 1: models of nested dimensions keep most of the meaning there."""
    return unit(np.ascontiguousarray(vectors[:, :dimensions]))
