"""Where a namespace's turns are cut into chunks: at a gate of tokens that is the later the less densely they say things."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from akashic_daemon.errors import NotFound
from akashic_daemon.memory.density import estimate, gate_tokens
from akashic_daemon.memory.memory import Memory
from akashic_daemon.memory.words import terms
from akashic_daemon.store.memory.rows import Cut, Turn

GATE_TOKENS = 1024

Idf = Callable[[str], float]


def idf_of(turn_count: int, document_counts: dict[str, int]) -> Idf:
    """Return the weight of terms by a namespace's own document frequencies; each is computed once."""

    @cache
    def idf(term: str) -> float:
        count = document_counts.get(term, 0)
        return math.log1p((max(turn_count, count) - count + 0.5) / (count + 0.5))

    return idf


def cuts(turns: Sequence[Turn], idf: Idf, seen: Mapping[str, int]) -> Iterator[Cut]:
    """Yield the chunks that are full, in order; turns after the last stay in the open chunk.

    seen: how often terms were seen elsewhere.
    """
    lines: set[int] = set()
    own: list[Turn] = []
    tokens = mass = 0.0
    for turn in turns:
        own.append(turn)
        tokens += turn.length_tokens
        mass += turn.length_tokens * estimate(turn.text, idf, seen, lines).estimated_rho
        rho = mass / tokens if tokens else 1.0
        if tokens >= gate_tokens(rho, gate=GATE_TOKENS):
            yield Cut(tuple(t.id for t in own), rho)
            own, tokens, mass = [], 0.0, 0.0
            lines.clear()


def cut_what_is_full(memory: Memory, namespace: str) -> list[int]:
    """Seal what is full of a namespace's open chunk, and return the sealed chunks. What was cut stays cut."""
    store = memory.store
    try:
        chunk = store.filled_chunk(namespace)
    except NotFound:
        return []
    if chunk is None or chunk.length_tokens < GATE_TOKENS:
        return []
    turns = store.turns_of_chunk(chunk.id)
    found = list(cuts(turns, *_known(memory, namespace, turns)))
    return store.cut_chunk(chunk, found) if found else []


def seal(memory: Memory, namespace: str) -> list[int]:
    """Seal what a namespace's open chunk has, full or not: nothing more is expected. An empty one stays open."""
    sealed = cut_what_is_full(memory, namespace)
    chunk = memory.store.filled_chunk(namespace)
    if chunk is not None and (turns := memory.store.turns_of_chunk(chunk.id)):
        idf, seen = _known(memory, namespace, turns)
        lines: set[int] = set()
        weights = [(turn.length_tokens, estimate(turn.text, idf, seen, lines).estimated_rho) for turn in turns]
        rho = sum(tokens * rho for tokens, rho in weights) / sum(tokens for tokens, _ in weights)
        sealed += memory.store.cut_chunk(chunk, [Cut(tuple(turn.id for turn in turns), rho)])
    return sealed


def _known(memory: Memory, namespace: str, turns: Sequence[Turn]) -> tuple[Idf, Counter[str]]:
    """Return the weight of terms, and in how many other turns each term of these is."""
    own = Counter(term for turn in turns for term in set(terms(turn.text)))
    counts = memory.store.document_counts(namespace, sorted(own))
    return idf_of(len(memory.index(namespace)), counts), Counter(counts) - own
