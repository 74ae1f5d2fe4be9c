"""What searches find where only compacted text is left, within as many tokens as the first ten whole turns take.

Two indexes: of the words as they were said, which is how turns are indexed, whatever becomes of their chunk's text; and one
that is made anew of what is left. Turns of which nothing is left are passed over. The budget is each question's own: the
tokens of the ten turns that a search over whole turns puts first.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from akashic_daemon.memory.evaluation.corpus import Conversation
from akashic_daemon.memory.memory import Memory, length_tokens

DEPTH = 10
BUDGET_TOKENS = 1000
_RANKED = 400

Ranked = Sequence[tuple[frozenset[str], int]]
"""Turns, the best first: the references of each, and what it costs in tokens; 0 where nothing is left of it."""


@dataclass(slots=True)
class Found:
    """Shares of each question's evidence, by figure."""

    shares: dict[str, list[float]] = field(default_factory=dict)

    def add(self, figure: str, evidence: frozenset[str], found: frozenset[str]) -> None:
        """Add a question's share."""
        self.shares.setdefault(figure, []).append(len(evidence & found) / len(evidence))

    def row(self) -> dict[str, Any]:
        """Return the means."""
        return {name: round(statistics.fmean(shares), 4) for name, shares in self.shares.items()}


def add(
    found: Found, memory: Memory, conversation: Conversation, name: str, left: Mapping[str, str], kept: frozenset[str]
) -> None:
    """Ask a conversation's questions.

    left: what is left of each turn, by its reference. kept: the references of the turns whose content is kept.
    """
    whole_space, left_space = f"{conversation.name} as said", f"{conversation.name} {name}"
    for source, said in conversation.sessions:
        memory.add(whole_space, source, said)
        some = [replace(turn, text=left[turn.reference]) for turn in said if left[turn.reference]]
        memory.add(left_space, source, some)
    for question in conversation.questions:
        whole = _ranked(memory, whole_space, question.text)
        shortened = [(names, max(_cost(left.get(reference, "")) for reference in names)) for names, _ in whole]
        anew = _ranked(memory, left_space, question.text)
        budget_tokens = sum(cost for _, cost in whole[:DEPTH])
        equal = within(shortened, budget_tokens)
        figures = {
            "recall_at_10": first(shortened, DEPTH),
            "recall_equal_tokens": equal,
            "recall_equal_tokens_kept": equal & kept,
            "recall_within_1000": within(shortened, BUDGET_TOKENS),
            "reindexed_at_10": first(anew, DEPTH),
            "reindexed_equal_tokens": within(anew, budget_tokens),
            "reindexed_within_1000": within(anew, BUDGET_TOKENS),
        }
        for figure, names in figures.items():
            found.add(figure, question.evidence, names)


def first(ranked: Ranked, count: int) -> frozenset[str]:
    """Return the references of the first turns of which something is left."""
    left = [names for names, cost in ranked if cost]
    return frozenset[str]().union(*left[:count])


def within(ranked: Ranked, budget_tokens: int) -> frozenset[str]:
    """Return the references of the turns that together fit a budget; what doesn't fit is passed over."""
    chosen: list[frozenset[str]] = []
    for names, cost in ranked:
        if 0 < cost <= budget_tokens:
            chosen.append(names)
            budget_tokens -= cost
    return frozenset[str]().union(*chosen)


def _cost(text: str) -> int:
    return length_tokens(text) if text else 0


def _ranked(memory: Memory, namespace: str, question: str) -> Ranked:
    spans = memory.search([namespace], question, limit=_RANKED)
    return [
        (frozenset(source.reference for source in memory.store.sources_of(span.turn.id)), span.turn.length_tokens)
        for span in spans
    ]
