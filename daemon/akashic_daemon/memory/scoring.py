"""How well turns fit a question: features of candidates, and the weights that make one score of them.

Every feature has a scale of its own, independent of how much is stored: BM25 as a share of what a turn with every term
would get, cosines, and bits. So one set of weights serves every namespace, and scores of two can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from akashic_daemon.memory import traits
from akashic_daemon.memory.index import NOBODY, NamespaceIndex
from akashic_daemon.memory.postings import Rows

Scores = NDArray[np.float32]

K1 = 1.2
B_OWN = 0.4
B_WIDE = 0.6
NEIGHBOUR_TERMS = 0.4
NEIGHBOUR_VECTORS = 0.3

_BLOCK_ROWS = 64
_NEARLY_NOTHING = 1e-6

FEATURES = (
    "words_around",
    "words_source",
    "meaning",
    "meaning_around",
    "speaker",
    "time_asked",
    "dated",
    "question",
    "answer",
    "length",
)
"""BM25 of the turn with its neighbours, of its source; cosine, with its neighbours'; the question names its speaker;
it has words of time and the question asks for one; it has such words; it is a question; it follows one; its length."""

WEIGHTS = np.array([7.0, 5.0, 1.0, 6.0, 2.2, 1.5, 0.35, -0.8, 0.5, 0.4], np.float32)
"""By FEATURES. Fitted to half of LoCoMo's conversations and rounded; a change of a fifth in any moves recall by under a
point."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question as an index sees it. speakers: whom it names; when it is about nobody in particular, none."""

    term_ids: tuple[int, ...]
    unknown_terms: int
    vector: Scores
    speakers: frozenset[int]
    asks_when: bool


@dataclass(frozen=True, slots=True)
class WordScores:
    """BM25 over all rows and sources, as shares of the most that the question could get."""

    around: Scores
    source: Scores


def score_words(index: NamespaceIndex, query: Query) -> WordScores:
    """Return BM25 of the query for each row with its neighbours, and for each source."""
    size = len(index)
    around = np.zeros(size, np.float32)
    source = np.zeros(index.source_count, np.float32)
    scratch = np.zeros(size, np.float32)
    length = index.length_terms
    mean = _mean(length)
    source_length = index.source_terms
    source_mean = _mean(source_length)
    most = source_most = 0.0
    for term in query.term_ids:
        rows, counts = index.postings.of(term)
        idf = _idf(size, len(rows))
        most += idf
        amount = counts.astype(np.float32)
        near = _spread(index, rows, amount, scratch)
        wide = length[near] * (1 + 2 * NEIGHBOUR_TERMS)
        around[near] += idf * _saturated(scratch[near], wide, mean * (1 + 2 * NEIGHBOUR_TERMS), B_WIDE)
        scratch[near] = 0
        within = np.bincount(index.source[rows], amount, index.source_count).astype(np.float32)
        source_idf = _idf(index.source_count, int(np.count_nonzero(within)))
        source_most += source_idf
        source += source_idf * _saturated(within, source_length, source_mean, 0.75)
    missing = query.unknown_terms
    most += missing * _idf(size, 0)
    source_most += missing * _idf(index.source_count, 0)
    return WordScores(around / max(most, 1.0), source / max(source_most, 1.0))


def score_own_words(index: NamespaceIndex, query: Query) -> Scores:
    """Return plain BM25 of the query for each row."""
    size, length = len(index), index.length_terms
    own = np.zeros(size, np.float32)
    for term in query.term_ids:
        rows, counts = index.postings.of(term)
        own[rows] += _idf(size, len(rows)) * _saturated(counts.astype(np.float32), length[rows], _mean(length), B_OWN)
    return own


def score_sketches(index: NamespaceIndex, query: Query) -> Scores:
    """Return about the cosine of each row's vector and the query's."""
    part = query.vector[: index.sketch.shape[1]]
    return np.asarray(index.sketch @ (part / max(float(np.linalg.norm(part)), 1e-9)), np.float32)


def candidates(index: NamespaceIndex, words: WordScores, sketches: Scores, count: int) -> Rows:
    """Return the rows worth a close look: the best by words and by meaning, and what was said beside them."""
    if len(index) <= 4 * count:
        return np.arange(len(index), dtype=np.int32)
    best = np.concatenate([_best(words.around, count), _best(sketches, count)])
    near = np.concatenate([best, index.previous[best], index.next[best]])
    found = np.unique(near)
    there: Rows = found[found != NOBODY]
    return there


def features(index: NamespaceIndex, query: Query, words: WordScores, rows: Rows) -> Scores:
    """Return (rows, FEATURES)."""
    bits = index.traits[rows]
    before = index.previous[rows]
    dated = (bits & traits.DATED > 0).astype(np.float32)
    follows = (index.traits[before] & traits.QUESTION > 0) & (before != NOBODY)
    meaning, around = _meanings(index, query, rows)
    named = np.isin(index.speaker[rows], list(query.speakers)) if query.speakers else np.zeros(len(rows), bool)
    columns: Sequence[NDArray[np.generic]] = (
        words.around[rows],
        words.source[index.source[rows]],
        meaning,
        around,
        named,
        dated * query.asks_when,
        dated,
        bits & traits.QUESTION > 0,
        follows,
        np.log1p(index.length_terms[rows]),
    )
    return np.stack([np.asarray(column, np.float32) for column in columns], axis=1)


def _meanings(index: NamespaceIndex, query: Query, rows: Rows) -> tuple[Scores, Scores]:
    before, after = index.previous[rows], index.next[rows]
    needed = np.unique(np.concatenate([rows, before, after]))
    cosine = (index.vectors[needed].astype(np.float32) @ query.vector) * index.scale[needed]
    cosine[needed == NOBODY] = 0
    own, *beside = (cosine[np.searchsorted(needed, which)] for which in (rows, before, after))
    return own, own + NEIGHBOUR_VECTORS * (beside[0] + beside[1])


def _spread(index: NamespaceIndex, rows: Rows, amount: Scores, scratch: Scores) -> Rows:
    """Put a term's counts into `scratch`, a part of them into the neighbours'; return the rows that got any."""
    scratch[rows] = amount
    touched = [rows]
    for beside in (index.previous[rows], index.next[rows]):
        there = beside != NOBODY
        scratch[beside[there]] += NEIGHBOUR_TERMS * amount[there]
        touched.append(beside[there])
    return np.concatenate(touched)


def _saturated(amount: Scores, length: Scores, mean: float, b: float) -> Scores:
    """Return BM25's share of a term's weight, at most 1."""
    return np.asarray(amount / (amount + K1 * (1 - b + b * length / mean)), np.float32)


def _mean(length: Scores) -> float:
    return max(float(length.mean()), 1.0) if len(length) else 1.0


def _idf(size: int, document_count: int) -> float:
    return float(np.log1p((size - document_count + 0.5) / (document_count + 0.5)))


def _best(scores: Scores, count: int) -> Rows:
    """Return the rows of about the `count` best scores above zero; of very many equal ones the newest.

    The best stand in the `count` blocks with the greatest scores, so that only those are looked through.
    """
    whole = len(scores) // _BLOCK_ROWS
    if whole <= count:
        rows = np.arange(len(scores))
    else:
        greatest = scores[: whole * _BLOCK_ROWS].reshape(whole, _BLOCK_ROWS).max(axis=1)
        blocks = np.sort(np.argpartition(greatest, whole - count)[whole - count :])
        inside = (blocks[:, None] * _BLOCK_ROWS + np.arange(_BLOCK_ROWS)).ravel()
        rows = np.concatenate([inside, np.arange(whole * _BLOCK_ROWS, len(scores))])
    some = scores[rows]
    least = max(float(np.partition(some, len(some) - count)[len(some) - count]), _NEARLY_NOTHING)
    return rows[some >= least][-2 * count :].astype(np.int32)
