"""A recorded run as a layout without a model: tokens are counted from bytes, and answers know which words they needed.

A word is *needed* by an answer when it stands in it and in the history before it, rare words counting more (IDF over all
messages of the run). What of these stands in no visible message is *lost*. KV behind a dropped text has seen it, so this
is stricter than the truth, which only a model tells; for comparing many policies it is cheap and has no opinion.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from akashic_daemon.program.layout import Layout
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.trajectory.prompt import Prompt

BYTES_PER_TOKEN = 3.6
_MARK_TOKENS = 4
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]{2,}")


@dataclass(frozen=True, slots=True)
class Need:
    """A word that an answer took from the history: its weight, and the messages that say it."""

    weight: float
    messages: frozenset[int]


@dataclass(frozen=True, slots=True)
class History:
    """One run. `needs` has an entry for each answer, by its message number."""

    name: str
    layout: Layout
    answers: tuple[int, ...]
    needs: dict[int, tuple[Need, ...]]

    @property
    def tokens(self) -> int:
        """How many tokens the whole run has."""
        return len(self.layout.tokens)


def history_of(name: str, messages: Sequence[Message]) -> History:
    """Return a run for judging; the last message need not be an answer."""
    tokens, owners = array("i"), array("i")
    for index, message in enumerate(messages):
        count = _MARK_TOKENS + math.ceil(len(_text(message).encode()) / BYTES_PER_TOKEN)
        tokens.extend(range(len(tokens), len(tokens) + count))
        owners.extend([index] * count)
    layout = Layout.of(messages, Prompt(tokens, owners))
    answers = tuple(i for i, m in enumerate(messages) if i and m.role is Role.ASSISTANT)
    return History(name, layout, answers, _needs(messages, answers))


def _text(message: Message) -> str:
    calls = " ".join(f"{call.name} {call.arguments}" for call in message.tool_calls)
    return f"{message.content} {message.thinking or ''} {calls}"


def _needs(messages: Sequence[Message], answers: Sequence[int]) -> dict[int, tuple[Need, ...]]:
    words = [set(_WORD.findall(_text(message).lower())) for message in messages]
    spread = Counter(word for said in words for word in said)
    where: dict[str, set[int]] = {}
    needs: dict[int, tuple[Need, ...]] = {}
    wanted = set(answers)
    for index, said in enumerate(words):
        if index in wanted:
            known = sorted(word for word in said if word in where)
            weights = (math.log(len(messages) / spread[word]) for word in known)
            needs[index] = tuple(
                Need(weight, frozenset(where[word])) for word, weight in zip(known, weights, strict=True) if weight > 0
            )
        for word in said:
            where.setdefault(word, set()).add(index)
    return needs
