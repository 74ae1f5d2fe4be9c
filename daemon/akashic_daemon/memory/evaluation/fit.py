"""Weights for the score, fitted on conversations, and what they are worth on one that they weren't fitted on.

Listwise logistic regression: the softmax over a conversation's turns should lie on the evidence. This is how the weights
in `scoring` were found, and the suite says what the same method gives on conversations that it hasn't seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from akashic_daemon.errors import TranscriptError
from akashic_daemon.memory.embedder import Embedder
from akashic_daemon.memory.evaluation.corpus import Conversation
from akashic_daemon.memory.evaluation.retrieval import Measured, Ranked, references
from akashic_daemon.memory.memory import Memory
from akashic_daemon.memory.scoring import FEATURES, features

_STEPS = 120
_RATE = 0.08
_L2 = 3e-3

Numbers = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Asked:
    """A conversation's questions as numbers: features (questions, turns, FEATURES), and where the evidence stands."""

    features: Numbers
    evidence: Numbers


def run(conversations: Sequence[Conversation], memory: Memory, embedder: Embedder) -> dict[str, Any]:
    """Fit on all conversations but one, for each of them; return recall on the ones left out, and the weights of all.

    Raises TranscriptError when there is one conversation only.
    """
    if len(conversations) < 2:
        raise TranscriptError("fitting on all conversations but one: there is one only", hint="name more files")
    known = []
    for conversation in conversations:
        for source, said in conversation.sessions:
            memory.add(conversation.name, source, said)
        known.append(references(memory, conversation.name))
    asked = [_ask(memory, c, turns) for c, turns in zip(conversations, known, strict=True)]
    measured = Measured()
    for left_out, (conversation, turns) in enumerate(zip(conversations, known, strict=True)):
        weights = fit([one for number, one in enumerate(asked) if number != left_out])
        for question, scores in zip(conversation.questions, asked[left_out].features @ weights, strict=True):
            measured.add(question, [turns[row] for row in np.argsort(-scores, kind="stable")[:200]])
    fitted = {name: round(float(w), 3) for name, w in zip(FEATURES, fit(asked), strict=True)}
    return {"rows": [measured.row("leave-one-out")], "weights": fitted}


def fit(asked: Sequence[Asked]) -> Numbers:
    """Return weights by FEATURES, by Adam on the softmax's cross entropy."""
    spread = np.mean([one.features.std(axis=(0, 1)) for one in asked], axis=0) + 1e-6
    weights, mean, square = (np.zeros(len(FEATURES), np.float32) for _ in range(3))
    for step in range(1, _STEPS + 1):
        slope = _L2 * weights
        for one in asked:
            scores = one.features @ (weights / spread)
            share = np.exp(scores - scores.max(axis=1, keepdims=True))
            share /= share.sum(axis=1, keepdims=True)
            pull = np.tensordot(share - one.evidence, one.features, axes=((0, 1), (0, 1))) / spread
            slope = slope + pull / (len(scores) * len(asked))
        mean = 0.9 * mean + 0.1 * slope
        square = 0.99 * square + 0.01 * slope**2
        weights = weights - _RATE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
    return np.asarray(weights / spread, np.float32)


def _ask(memory: Memory, conversation: Conversation, turns: Sequence[Ranked]) -> Asked:
    index = memory.index(conversation.name)
    rows = np.arange(len(index), dtype=np.int32)
    numbers, evidence = [], np.zeros((len(conversation.questions), len(index)), np.float32)
    for place, question in enumerate(conversation.questions):
        query = memory.query(conversation.name, question.text)
        numbers.append(features(index, query, rows))
        evidence[place] = [bool(question.evidence & names) for names, _ in turns]
    return Asked(np.stack(numbers), evidence / evidence.sum(axis=1, keepdims=True))
