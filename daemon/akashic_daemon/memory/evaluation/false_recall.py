"""What recall puts before questions: something to those that a conversation answers, nothing to those about other ones.

Each conversation is asked its own questions, and some of the others'. The threshold of `memory.recall` was chosen by this.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from akashic_daemon.memory import recall
from akashic_daemon.memory.answers import Recalled
from akashic_daemon.memory.embedder import Embedder
from akashic_daemon.memory.evaluation.corpus import Conversation, Question
from akashic_daemon.memory.memory import Memory

FOREIGN_QUESTIONS = 200
"""So many questions about other conversations are asked each one."""
_CANDIDATES = 64


def run(conversations: Sequence[Conversation], memory: Memory, _embedder: Embedder) -> dict[str, Any]:
    """Ask all, within the default budget; with a single conversation there are no foreign questions."""
    for conversation in conversations:
        for source, said in conversation.sessions:
            memory.add(conversation.name, source, said)
    shares: list[float] = []
    tokens: list[int] = []
    false_tokens: list[int] = []
    for conversation in conversations:
        for question in conversation.questions:
            found = _ask(memory, conversation, question)
            tokens.append(found.length_tokens)
            shares.append(_share(question, found))
        foreign = _foreign(conversations, conversation)
        false_tokens += [_ask(memory, conversation, question).length_tokens for question in foreign]
    row = {
        "method": "recall",
        "recalled": _mean([float(count > 0) for count in tokens]),
        "evidence": _mean(shares),
        "tokens": _mean([float(count) for count in tokens]),
        "false_recall": _mean([float(count > 0) for count in false_tokens]) if false_tokens else None,
        "false_tokens": _mean([float(count) for count in false_tokens]) if false_tokens else None,
    }
    return {
        "rows": [row],
        "questions": len(tokens),
        "foreign_questions": len(false_tokens),
        "budget_tokens": recall.BUDGET_TOKENS,
    }


def _ask(memory: Memory, conversation: Conversation, question: Question) -> Recalled:
    return recall.recall(
        memory,
        question.text,
        namespaces=[conversation.name],
        budget_tokens=recall.BUDGET_TOKENS,
        now_s=None,
        limit=_CANDIDATES,
    )


def _foreign(conversations: Sequence[Conversation], own: Conversation) -> list[Question]:
    """Return questions about the others, spread evenly over them."""
    others = [question for one in conversations if one is not own for question in one.questions]
    step = max(1, len(others) // FOREIGN_QUESTIONS)
    return others[::step][:FOREIGN_QUESTIONS]


def _share(question: Question, found: Recalled) -> float:
    told = {source.reference for one in found.found for source in one.sources}
    return len(question.evidence & told) / len(question.evidence)


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 4)
