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
from akashic_daemon.memory.postings import Counts, Rows, distinct
from akashic_daemon.memory.times import TimeSpan

Scores = NDArray[np.float32]
Places = NDArray[np.intp]

K1 = 1.2
B_OWN = 0.4
B_WIDE = 0.6
B_SOURCE = 0.75
NEIGHBOUR_TERMS = 0.4
NEIGHBOUR_VECTORS = 0.3

_FAR_MORE = 32
"""From here on looking each row up in a term's sorted rows is quicker than writing all of these down."""

FEATURES = (
    "words_around",
    "words_source",
    "meaning",
    "meaning_around",
    "speaker",
    "time_asked",
    "time_named",
    "dated",
    "question",
    "answer",
    "length",
)
"""BM25 of the turn with its neighbours, of its source; cosine, with its neighbours'; the question names its speaker;
it has words of time and the question asks for one; it was said when the question says; it has words of time; it is a question; it follows one; its length."""

WEIGHTS = np.array([7.0, 5.0, 1.0, 6.0, 2.2, 1.5, 2.0, 0.35, -0.8, 0.5, 0.4], np.float32)
"""By FEATURES. Fitted to half of LoCoMo's conversations and rounded; a change of a fifth in any moves recall by under a
point."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question as an index sees it. speakers: whom it names; when it is about nobody in particular, none.

    times: those that it names.
    """

    term_ids: tuple[int, ...]
    unknown_terms: int
    vector: Scores
    speakers: frozenset[int]
    asks_when: bool
    times: tuple[TimeSpan, ...] = ()


def score_own_words(index: NamespaceIndex, query: Query) -> Scores:
    """Return plain BM25 of the query for each row."""
    size, length = len(index), index.length_terms
    own = np.zeros(size, np.float32)
    for term in query.term_ids:
        rows, counts = index.postings.of(term)
        own[rows] += idf(size, len(rows)) * saturated(counts.astype(np.float32), length[rows], _mean(length), B_OWN)
    return own


def features(index: NamespaceIndex, query: Query, rows: Rows) -> Scores:
    """Return (rows, FEATURES)."""
    bits = index.traits[rows]
    before = index.previous[rows]
    dated = (bits & traits.DATED > 0).astype(np.float32)
    follows = (index.traits[before] & traits.QUESTION > 0) & (before != NOBODY)
    near = _near(index, rows)
    words_around, words_source = _words(index, query, rows, near)
    meaning, meaning_around = _meanings(index, query, near)
    named = np.isin(index.speaker[rows], list(query.speakers)) if query.speakers else np.zeros(len(rows), bool)
    columns: Sequence[NDArray[np.generic]] = (
        words_around,
        words_source,
        meaning,
        meaning_around,
        named,
        dated * query.asks_when,
        _said_then(index, query, rows),
        dated,
        bits & traits.QUESTION > 0,
        follows,
        np.log1p(index.length_terms[rows]),
    )
    return np.stack([np.asarray(column, np.float32) for column in columns], axis=1)


@dataclass(frozen=True, slots=True)
class _Near:
    """Rows with their neighbours: all of them ascending, and where in it stand the rows, those before, those after."""

    all: Rows
    own: Places
    before: Places
    after: Places

    def with_neighbours(self, values: Scores, share: float) -> Scores:
        """Return each row's value, of `values` by `all`, and a share of its neighbours'."""
        return np.asarray(values[self.own] + np.float32(share) * (values[self.before] + values[self.after]), np.float32)


def _near(index: NamespaceIndex, rows: Rows) -> _Near:
    before, after = index.previous[rows], index.next[rows]
    found = distinct(np.concatenate([rows, before, after]))
    return _Near(found, *(np.searchsorted(found, which) for which in (rows, before, after)))


def _words(index: NamespaceIndex, query: Query, rows: Rows, near: _Near) -> tuple[Scores, Scores]:
    """Return BM25 of each row with its neighbours, and of its source, as shares of the most that there could be."""
    size, sources = len(index), index.source_count
    source = index.source[rows]
    wide_length = index.length_terms[rows] * (1 + 2 * NEIGHBOUR_TERMS)
    wide_mean = index.mean_length_terms * (1 + 2 * NEIGHBOUR_TERMS)
    source_length = index.source_terms[source]
    source_mean = _mean(index.source_terms)
    around, within = np.zeros((2, len(rows)), np.float32)
    most = query.unknown_terms * idf(size, 0)
    source_most = query.unknown_terms * idf(sources, 0)
    for term in query.term_ids:
        having, counts = index.postings.of(term)
        weight = idf(size, len(having))
        amount = near.with_neighbours(_counts_at(index.scratch, near.all, having, counts), NEIGHBOUR_TERMS)
        around += weight * saturated(amount, wide_length, wide_mean, B_WIDE)
        most += weight
        by_source = np.bincount(index.source[having], counts, sources)
        weight = idf(sources, int(np.count_nonzero(by_source)))
        within += weight * saturated(by_source[source].astype(np.float32), source_length, source_mean, B_SOURCE)
        source_most += weight
    return around / np.float32(max(most, 1.0)), within / np.float32(max(source_most, 1.0))


def _counts_at(scratch: Scores, wanted: Rows, rows: Rows, counts: Counts) -> Scores:
    """Return how often each of the wanted rows has a term; NOBODY has none. The scratch is left as it was."""
    if len(rows) > _FAR_MORE * len(wanted):
        at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
        return np.where(rows[at] == wanted, counts[at], 0).astype(np.float32)
    scratch[rows] = counts
    found: Scores = scratch[wanted]
    scratch[rows] = 0
    return found


def _meanings(index: NamespaceIndex, query: Query, near: _Near) -> tuple[Scores, Scores]:
    """Return each row's cosine with the query, and with a share of its neighbours'."""
    cosine = index.cosines(near.all, query.vector)
    cosine[near.all == NOBODY] = 0
    own: Scores = cosine[near.own]
    return own, near.with_neighbours(cosine, NEIGHBOUR_VECTORS)


def _said_then(index: NamespaceIndex, query: Query, rows: Rows) -> Scores:
    """Return how near in time each row is to one that the question names: 1 within it, less before and after it.

    A time in which nearly all was said tells nothing, and counts the less.
    """
    out = np.zeros(len(rows), np.float32)
    at_s = index.event_at_s[rows]
    for time in query.times:
        every = index.event_at_s
        share = np.count_nonzero((every >= time.start_s) & (every < time.end_s)) / max(len(index), 1)
        before, after = (time.start_s - at_s) / time.fades_before_s, (at_s - time.end_s) / time.fades_after_s
        near = np.exp(-np.maximum(np.maximum(before, after), 0)) * (1 - share)
        out = np.maximum(out, np.nan_to_num(near).astype(np.float32))
    return out


def saturated(amount: Scores, length: Scores, mean: float, b: float) -> Scores:
    """Return BM25's share of a term's weight, at most 1. length, mean: of texts, in terms."""
    return np.asarray(amount / (amount + K1 * (1 - b + b * length / mean)), np.float32)


def _mean(length: Scores) -> float:
    return max(float(length.mean()), 1.0) if len(length) else 1.0


def idf(size: int, document_count: int) -> float:
    """Return what a term weighs that `document_count` of `size` texts have."""
    return float(np.log1p((size - document_count + 0.5) / (document_count + 0.5)))
