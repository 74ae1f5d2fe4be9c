"""Which share of a question's evidence the first turns hold: ours, and what a plainer search would give.

All methods search the same conversations, each by itself. The baselines: BM25 over each turn alone, the embedder's
vectors without weights, and both of these joined by equal-weight rank fusion.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from akashic_daemon.memory.embedder import Embedder, Vectors
from akashic_daemon.memory.evaluation.corpus import CATEGORIES, Conversation, Question
from akashic_daemon.memory.memory import Memory
from akashic_daemon.memory.scoring import Scores, score_own_words

DEPTHS = (5, 10, 20)
BUDGETS_TOKENS = (250, 500, 1000, 2000, 4000)
OURS = "akashic"

_FUSION_RANK = 60

Ranked = tuple[frozenset[str], int]
"""A turn in a ranking: the references it has in the corpus, and its length in tokens."""


@dataclass(slots=True)
class Measured:
    """What one method found of each question's evidence."""

    recalls: list[dict[int, float]] = field(default_factory=list)
    within: list[dict[int, float]] = field(default_factory=list)
    categories: list[int] = field(default_factory=list)

    def add(self, question: Question, ranked: Sequence[Ranked]) -> None:
        """Add a ranking: of each turn its references and its length in tokens, the best first."""
        self.categories.append(question.category)
        self.recalls.append({k: _share(question, [refs for refs, _ in ranked[:k]]) for k in DEPTHS})
        self.within.append({b: _share(question, _fitting(ranked, b)) for b in BUDGETS_TOKENS})

    def row(self, method: str) -> dict[str, Any]:
        """Return the means over all questions, and over those of each category."""
        return {
            "method": method,
            "recall": {str(k): _mean([r[k] for r in self.recalls]) for k in DEPTHS},
            "recall_within_tokens": {str(b): _mean([w[b] for w in self.within]) for b in BUDGETS_TOKENS},
            "by_category": {
                name: {
                    str(k): _mean([r[k] for r, c in zip(self.recalls, self.categories, strict=True) if c == number])
                    for k in DEPTHS
                }
                for number, name in CATEGORIES.items()
                if number in self.categories
            },
        }


def run(conversations: Sequence[Conversation], memory: Memory, embedder: Embedder) -> dict[str, Any]:
    """Put the conversations into the memory, ask every question, and return each method's figures and our times."""
    methods = {name: Measured() for name in (OURS, "bm25", "embedding", "fusion")}
    search_s: list[float] = []
    ingest_s = 0.0
    for conversation in conversations:
        started_s = time.perf_counter()
        for source, said in conversation.sessions:
            memory.add(conversation.name, source, said)
        ingest_s += time.perf_counter() - started_s
        ask = _Asked(memory, embedder, conversation)
        for question in conversation.questions:
            started_s = time.perf_counter()
            spans = memory.search([conversation.name], question.text, limit=200)
            search_s.append(time.perf_counter() - started_s)
            methods[OURS].add(question, [ask.known[span.turn.id] for span in spans])
            for name, ranked in ask.baselines(question.text).items():
                methods[name].add(question, ranked)
    turns = sum(conversation.turn_count for conversation in conversations)
    return {
        "rows": [measured.row(name) for name, measured in methods.items()],
        "turns": turns,
        "questions": len(search_s),
        "ingest_turns_per_s": round(turns / ingest_s, 1),
        "search_p50_ms": round(1000 * statistics.median(search_s), 3),
        "search_p95_ms": round(1000 * float(np.quantile(search_s, 0.95)), 3),
    }


def references(memory: Memory, namespace: str) -> list[Ranked]:
    """Return, for each row of the namespace's index, its turn's references and length."""
    index = memory.index(namespace)
    lengths = index.length_tokens.tolist()
    return [
        (frozenset(source.reference for source in memory.store.sources_of(turn_id)), length)
        for turn_id, length in zip(index.turn_ids.tolist(), lengths, strict=True)
    ]


class _Asked:
    """One conversation's turns as the plainer methods see them."""

    def __init__(self, memory: Memory, embedder: Embedder, conversation: Conversation) -> None:
        self._memory, self._embedder, self._namespace = memory, embedder, conversation.name
        ids = memory.index(conversation.name).turn_ids.tolist()
        turns = memory.store.turns(ids)
        self._by_row = references(memory, conversation.name)
        self.known = dict(zip(ids, self._by_row, strict=True))
        self._plain = self._embed([f"{turns[i].speaker}: {turns[i].text}" for i in ids])

    def baselines(self, question: str) -> dict[str, list[Ranked]]:
        """Return the rankings of the plainer methods."""
        index = self._memory.index(self._namespace)
        words = score_own_words(index, self._memory.query(self._namespace, question))
        meaning = np.asarray(self._plain @ self._embed([question])[0], np.float32)
        scores: dict[str, Scores] = {
            "bm25": words,
            "embedding": meaning,
            "fusion": _reciprocal_ranks(words) + _reciprocal_ranks(meaning),
        }
        return {name: [self._by_row[row] for row in _order(by)[:200]] for name, by in scores.items()}

    def _embed(self, texts: Sequence[str]) -> Vectors:
        return self._embedder.pool(self._embedder.token_ids(texts))


def _order(scores: Scores) -> NDArray[np.intp]:
    return np.argsort(-scores, kind="stable")


def _reciprocal_ranks(scores: Scores) -> Scores:
    out = np.empty(len(scores), np.float32)
    out[_order(scores)] = 1 / (_FUSION_RANK + np.arange(len(scores), dtype=np.float32))
    return out


def _share(question: Question, found: Sequence[frozenset[str]]) -> float:
    return len(question.evidence & frozenset[str]().union(*found)) / len(question.evidence)


def _fitting(ranked: Sequence[Ranked], budget_tokens: int) -> list[frozenset[str]]:
    chosen, left = [], budget_tokens
    for references, length_tokens in ranked:
        if length_tokens <= left:
            chosen.append(references)
            left -= length_tokens
    return chosen


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 4)


Suite = Callable[[Sequence[Conversation], Memory, Embedder], dict[str, Any]]
"""Takes a corpus and an empty memory; returns data, its figures under "rows"."""
