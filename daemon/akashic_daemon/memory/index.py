"""One namespace's turns as arrays: what a search reads, about 500 bytes a turn. Rows are in the order of turn ids.

Vectors are kept twice: the sign of each dimension, for one quick pass over all, and whole in eight bits, for the few
that are looked at closely. Knows no texts; the store is the truth, and an index is made anew from it at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from akashic_daemon.memory.embedder import Vectors
from akashic_daemon.memory.postings import Postings
from akashic_daemon.store.memory.rows import IndexRow

NOBODY = -1
"""Row number that stands for no turn."""

_Number = TypeVar("_Number", bound=np.generic)
_GROWTH = 1.25
_FIRST_ROWS = 64
_WORD_BITS = 64


class NamespaceIndex:
    """Arrays over the rows; all but `vectors` are read only outside."""

    def __init__(self, dimensions: int) -> None:
        self.postings = Postings()
        self._size = 0
        self._columns: dict[str, NDArray[Any]] = {
            "turn_ids": np.empty(0, np.int64),
            "previous": np.empty(0, np.int32),
            "next": np.empty(0, np.int32),
            "source": np.empty(0, np.int32),
            "speaker": np.empty(0, np.int32),
            "event_at_s": np.empty(0, np.float64),
            "length_tokens": np.empty(0, np.int32),
            "length_terms": np.empty(0, np.float32),
            "traits": np.empty(0, np.uint8),
            "vectors": np.empty((0, dimensions), np.int8),
            "scale": np.empty(0, np.float32),
        }
        self._sign_words = [f"signs {word}" for word in range(-(-dimensions // _WORD_BITS))]
        self._columns |= {name: np.empty(0, np.uint64) for name in self._sign_words}
        self.scratch = np.zeros(1, np.float32)
        """Zeros, one for each row and one more; who puts something in takes it out again."""
        self.speakers: dict[str, int] = {}
        self._sources: dict[int, int] = {}
        self._source_terms = np.zeros(0, np.float32)
        self._newest_event_at_s = float("nan")

    def __len__(self) -> int:
        return self._size

    @property
    def size_bytes(self) -> int:
        """What the arrays take."""
        own = sum(column.nbytes for column in self._columns.values())
        return own + self.scratch.nbytes + self._source_terms.nbytes + self.postings.size_bytes

    @property
    def source_count(self) -> int:
        """How many sources the turns are from."""
        return len(self._sources)

    @property
    def last_turn_id(self) -> int:
        """The newest turn's id; 0 when there is none."""
        return int(self.turn_ids[-1]) if self._size else 0

    @property
    def newest_event_at_s(self) -> float | None:
        """When the newest of the turns was said whose time is known; None when no turn's is."""
        return None if np.isnan(self._newest_event_at_s) else self._newest_event_at_s

    @property
    def turn_ids(self) -> NDArray[np.int64]:
        """Each row's turn."""
        return self._column("turn_ids", np.int64)

    @property
    def previous(self) -> NDArray[np.int32]:
        """The row said before, in the same source; NOBODY when there is none."""
        return self._column("previous", np.int32)

    @property
    def next(self) -> NDArray[np.int32]:
        """The row said after, in the same source; NOBODY when there is none."""
        return self._column("next", np.int32)

    @property
    def source(self) -> NDArray[np.int32]:
        """Each row's source, numbered from 0."""
        return self._column("source", np.int32)

    @property
    def speaker(self) -> NDArray[np.int32]:
        """Each row's speaker, as `speakers` numbers them."""
        return self._column("speaker", np.int32)

    @property
    def event_at_s(self) -> NDArray[np.float64]:
        """When it was said; NaN when unknown."""
        return self._column("event_at_s", np.float64)

    @property
    def length_tokens(self) -> NDArray[np.int32]:
        """Each row's length."""
        return self._column("length_tokens", np.int32)

    @property
    def length_terms(self) -> NDArray[np.float32]:
        """How many terms a row has, repeats counted."""
        return self._column("length_terms", np.float32)

    @property
    def source_terms(self) -> NDArray[np.float32]:
        """How many terms each source has."""
        return self._source_terms

    @property
    def mean_length_terms(self) -> float:
        """How many terms a row has in the mean, at least 1."""
        return max(float(self._source_terms.sum()) / max(self._size, 1), 1.0)

    @property
    def traits(self) -> NDArray[np.uint8]:
        """Bits of `akashic_daemon.memory.traits`."""
        return self._column("traits", np.uint8)

    @property
    def vectors(self) -> NDArray[np.int8]:
        """Each row's vector of length 1, over its `scale`."""
        return self._column("vectors", np.int8)

    @property
    def scale(self) -> NDArray[np.float32]:
        """What a step of each row's vector is worth."""
        return self._column("scale", np.float32)

    @property
    def signs(self) -> list[NDArray[np.uint64]]:
        """The signs of the vectors as bits, each array 64 dimensions of every row."""
        return [self._column(name, np.uint64) for name in self._sign_words]

    def cosines(self, rows: NDArray[np.int32], vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return how near the vectors of rows are to one of length 1.

        Without BLAS: for so few rows it takes longer to bring its threads together, and on a busy machine a hundred times.
        """
        return np.asarray(np.einsum("ij,j->i", self.vectors[rows], vector) * self.scale[rows], np.float32)

    def rows_of(self, turn_ids: Sequence[int]) -> NDArray[np.int32]:
        """Return the rows of turns; those it doesn't have are left out."""
        wanted = np.array(turn_ids, np.int64)
        at = np.searchsorted(self.turn_ids, wanted)
        there = at < self._size
        there[there] = self.turn_ids[at[there]] == wanted[there]
        return at[there].astype(np.int32)

    def append(self, rows: Sequence[IndexRow], vectors: Vectors) -> None:
        """Add turns, in the order of their ids, with their vectors (rows, dimensions)."""
        first, count = self._size, len(rows)
        if not count:
            return
        self._reserve(first + count)
        self._size += count
        new = slice(first, self._size)
        self.turn_ids[new] = [row.turn_id for row in rows]
        self.source[new] = [self._sources.setdefault(row.source_id, len(self._sources)) for row in rows]
        self.speaker[new] = [self.speakers.setdefault(row.speaker, len(self.speakers)) for row in rows]
        self.event_at_s[new] = [np.nan if row.event_at_s is None else row.event_at_s for row in rows]
        self._newest_event_at_s = float(np.fmax.reduce(self.event_at_s[new], initial=self._newest_event_at_s))
        self.length_tokens[new] = [row.length_tokens for row in rows]
        self.traits[new] = [row.traits & 0xFF for row in rows]
        terms = [np.frombuffer(row.term_ids, "<u4") for row in rows]
        sizes = [len(own) for own in terms]
        self.length_terms[new] = sizes
        self._count_source_terms(self.source[new], sizes)
        self.postings.add(np.repeat(np.arange(first, self._size, dtype=np.int32), sizes), np.concatenate(terms))
        self._join(rows, first)
        self.put_vectors(first, vectors)

    def put_vectors(self, first: int, vectors: Vectors) -> None:
        """Set the vectors of rows from one on."""
        place = slice(first, first + len(vectors))
        scale = np.maximum(np.abs(vectors).max(axis=1), 1e-9) / 127
        self.vectors[place] = np.rint(vectors / scale[:, None])
        self.scale[place] = scale
        for own, bits in zip(self.signs, signs_of(vectors), strict=True):
            own[place] = bits

    def _count_source_terms(self, sources: NDArray[np.int32], sizes: Sequence[int]) -> None:
        have = len(self._source_terms)
        if self.source_count > have:
            self._source_terms = np.append(self._source_terms, np.zeros(self.source_count - have, np.float32))
        np.add.at(self._source_terms, sources, np.array(sizes, np.float32))

    def _join(self, rows: Sequence[IndexRow], first: int) -> None:
        """Let the new rows know what was said before and after them."""
        self.previous[first:] = NOBODY
        self.next[first:] = NOBODY
        before = np.array([row.previous_id or 0 for row in rows], np.int64)
        at = np.searchsorted(self.turn_ids, before)
        own = np.arange(first, self._size, dtype=np.int32)
        there = (at < own) & (self.turn_ids[np.minimum(at, self._size - 1)] == before)
        self.previous[own[there]] = at[there]
        self.next[at[there]] = own[there]

    def _column(self, name: str, kind: type[_Number]) -> NDArray[_Number]:
        column = self._columns[name][: self._size]
        assert column.dtype == kind
        return column

    def _reserve(self, size: int) -> None:
        have = len(self._columns["turn_ids"])
        if size <= have:
            return
        rows = max(size, int(have * _GROWTH), _FIRST_ROWS)
        for name, column in self._columns.items():
            larger = np.empty((rows, *column.shape[1:]), column.dtype)
            larger[: self._size] = column[: self._size]
            self._columns[name] = larger
        self.scratch = np.zeros(rows + 1, np.float32)


def signs_of(vectors: Vectors) -> NDArray[np.uint64]:
    """Return which dimensions are above zero, as bits: (dimensions / 64 rounded up, vectors)."""
    bits = np.packbits(vectors > 0, axis=1)
    whole = np.zeros((len(vectors), -(-vectors.shape[1] // _WORD_BITS) * 8), np.uint8)
    whole[:, : bits.shape[1]] = bits
    return np.ascontiguousarray(whole.view(np.uint64).T)
