"""What memory puts before a question: the turns that fit it, in the order in time, under a budget, between marks.

Nothing is put there when nothing is to the point: a model takes what stands before a question as bearing on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from akashic_daemon.memory.answers import Found, Recalled
from akashic_daemon.memory.memory import Memory, Span
from akashic_daemon.memory.recalled import marked, told

BUDGET_TOKENS = 1536
_OVERHEAD_TOKENS = 24
"""The marks and the line that says what stands there."""
_LINE_TOKENS = 12
"""A line's date and speaker."""
_HEAD = "From memory, said earlier, in the order in time:"

LEAST_RELEVANCE = 6.0
"""So relevant the best turn must be. `akashic bench memory` tells what that gives: on LoCoMo's half 10 % of the questions
that a conversation answers get nothing from it, and 6 % of the questions about other conversations get something."""
_BESIDE_THE_BEST = 0.4
"""So relevant a turn must be, as a share of the best one's relevance."""
_TO_THE_POINT = ("words_around", "words_source", "meaning", "meaning_around", "speaker")
_LONGEST_QUERY = 4096
"""Characters of a question that are searched for: of a longer one the first and the last."""


def search(
    memory: Memory,
    query: str,
    *,
    namespaces: Sequence[str],
    limit: int,
    budget_tokens: int | None = None,
    now_s: float | None = None,
    explain: bool = False,
) -> list[Found]:
    """Return what fits a question best, the best first. What was said after `now_s` isn't found; times count from it."""
    spans = memory.search(namespaces, query, limit=limit, asked_at_s=now_s)
    if budget_tokens is not None:
        spans = _fitting(spans, budget_tokens, 0)
    return [
        Found(span.turn, span.score, tuple(memory.store.sources_of(span.turn.id)), span.parts if explain else {})
        for span in spans
    ]


def recall(
    memory: Memory,
    query: str,
    *,
    namespaces: Sequence[str],
    budget_tokens: int,
    now_s: float | None,
    limit: int,
    apart_from: Sequence[str] = (),
) -> Recalled:
    """Return what is put before a question; empty when nothing is to the point or nothing of it fits the budget.

    apart_from: texts that stand before the question anyway.
    """
    found = search(memory, _shortened(query), namespaces=namespaces, limit=limit, now_s=now_s, explain=True)
    found = [one for one in found if not any(one.turn.text in text for text in apart_from)]
    best = max(map(relevance, found), default=0.0)
    if best < LEAST_RELEVANCE:
        return Recalled("", (), 0)
    found = [one for one in found if relevance(one) >= _BESIDE_THE_BEST * best]
    spans = _fitting([Span(f.turn, f.score, f.parts) for f in found], budget_tokens - _OVERHEAD_TOKENS, _LINE_TOKENS)
    chosen = {span.turn.id for span in spans}
    shown = sorted((f for f in found if f.turn.id in chosen), key=lambda f: (f.turn.event_at_s or 0.0, f.turn.id))
    if not shown:
        return Recalled("", (), 0)
    text = marked("\n".join([_HEAD, *map(_line, shown)]))
    return Recalled(text, tuple(shown), -(-len(text.encode("utf-8", "surrogatepass")) // 4))


def relevance(found: Found) -> float:
    """Return how much a turn is about the question; its form (dated, long, an answer) doesn't count."""
    return sum(found.parts.get(name, 0.0) for name in _TO_THE_POINT)


def _shortened(query: str) -> str:
    half = _LONGEST_QUERY // 2
    return query if len(query) <= _LONGEST_QUERY else f"{query[:half]}\n{query[-half:]}"


def _line(found: Found) -> str:
    return told(found.turn.event_at_s, found.turn.speaker, found.turn.text)


def _fitting(spans: Sequence[Span], budget_tokens: int, overhead_tokens: int) -> list[Span]:
    chosen = []
    for span in spans:
        needed = span.turn.length_tokens + overhead_tokens
        if needed <= budget_tokens:
            chosen.append(span)
            budget_tokens -= needed
    return chosen
