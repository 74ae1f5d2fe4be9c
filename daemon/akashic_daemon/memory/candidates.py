"""Which turns a search looks at closely: the best of a namespace by two rough scores, each one quick pass.

By words: BM25 of a turn and a share of its neighbours'. The rarest terms of a question are asked first, and a frequent
one that would read over MOST_ENTRIES isn't: it hardly tells turns apart, and counts when they are looked at closely.
By meaning: in how many dimensions a vector's sign differs from the question's; of the best, the nearest by the vectors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from akashic_daemon.memory.index import NOBODY, NamespaceIndex, signs_of
from akashic_daemon.memory.postings import Rows, distinct
from akashic_daemon.memory.scoring import NEIGHBOUR_TERMS, Query, Scores, idf, saturated

CLOSE_LOOKS = 384
"""So many of the best by either score are looked at closely: of a search over 100,000 turns, 95 in 100 of the ten that
a close look at every turn would find are then found."""

MOST_ENTRIES = 1 << 17
"""So many entries of the postings a search reads for its candidates, or all of its rarest term."""

_B = 0.5
_BY_SIGNS = 4
"""So many times the rows that are wanted are taken by signs, before vectors choose among them."""
_PART_ROWS = 1 << 14
_BLOCK_ROWS = 64


def find(index: NamespaceIndex, query: Query, count: int) -> Rows:
    """Return the rows worth a close look, ascending: about the best `count` by either score, and their neighbours."""
    if len(index) <= 4 * count:
        return np.arange(len(index), dtype=np.int32)
    best = np.concatenate([by_words(index, query, count), by_meaning(index, query, count)])
    found = distinct(np.concatenate([best, index.previous[best], index.next[best]]))
    there: Rows = found[found != NOBODY]
    return there


def by_words(index: NamespaceIndex, query: Query, count: int) -> Rows:
    """Return about the `count` rows that have the best scores by words; of very many equal ones the newest."""
    own = index.scratch
    _score_own(index, query, own)
    rows = np.flatnonzero(own > 0).astype(np.int32)
    # The scratch's last place is always 0, and NOBODY is the last place.
    beside = own[index.previous[rows]] + own[index.next[rows]]
    scores = own[rows] + np.float32(NEIGHBOUR_TERMS) * beside
    own[rows] = 0
    if len(rows) <= count:
        return rows
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    best: Rows = rows[scores >= least][-2 * count :]
    return best


def by_meaning(index: NamespaceIndex, query: Query, count: int) -> Rows:
    """Return the `count` rows whose vectors are nearest to the query's; none for a query without meaning."""
    if not query.vector.any():
        return np.empty(0, np.int32)
    rows = nearest(differing_signs(index, query), _BY_SIGNS * count)
    cosine = index.cosines(rows, query.vector)
    best: Rows = rows[np.argsort(-cosine, kind="stable")[:count]]
    return best


def differing_signs(index: NamespaceIndex, query: Query) -> NDArray[np.uint8]:
    """Return in how many dimensions each row's vector has another sign than the query's.

    A count that a byte can't hold starts over at 0: vectors of 256 dimensions that are each other's opposite.
    """
    wanted = signs_of(query.vector[None, :])
    out = np.empty(len(index), np.uint8)
    for start in range(0, len(index), _PART_ROWS):
        total = out[start : start + _PART_ROWS]
        part = slice(start, start + len(total))
        total[:] = 0
        for own, theirs in zip(index.signs, wanted, strict=True):
            total += np.bitwise_count(own[part] ^ theirs)
    return out


def nearest(distances: NDArray[np.uint8], count: int) -> Rows:
    """Return the rows of the `count` smallest distances, ascending; of equal ones the newest.

    They stand in the blocks with the smallest ones, so that only those are looked through.
    """
    size = len(distances)
    whole = size // _BLOCK_ROWS
    rows = np.arange(size, dtype=np.int32) if whole <= count else _in_blocks(distances, whole, count)
    if size <= count:
        return rows
    some = distances[rows]
    most = np.partition(some, count - 1)[count - 1]
    closer = rows[some < most]
    equal = rows[some == most]
    return np.sort(np.concatenate([closer, equal[len(equal) - (count - len(closer)) :]]))


def _in_blocks(distances: NDArray[np.uint8], whole: int, count: int) -> Rows:
    """Return the rows of the `count` blocks with the smallest distances, the newest of equal ones, and of the rest."""
    smallest = distances[: whole * _BLOCK_ROWS].reshape(whole, _BLOCK_ROWS).min(axis=1)
    blocks = nearest(smallest, count)
    inside = (blocks[:, None] * _BLOCK_ROWS + np.arange(_BLOCK_ROWS, dtype=np.int32)).ravel()
    return np.concatenate([inside, np.arange(whole * _BLOCK_ROWS, len(distances), dtype=np.int32)])


def _score_own(index: NamespaceIndex, query: Query, own: Scores) -> None:
    """Add BM25 of the query, by its rarest terms, to `own`."""
    size, length, mean = len(index), index.length_terms, index.mean_length_terms
    read = 0
    for rows, counts in sorted((index.postings.of(term) for term in query.term_ids), key=lambda found: len(found[0])):
        read += len(rows)
        if read > max(MOST_ENTRIES, len(rows)):
            break
        own[rows] += idf(size, len(rows)) * saturated(counts.astype(np.float32), length[rows], mean, _B)
