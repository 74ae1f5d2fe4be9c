"""Bits that are noted of a turn when it is stored, because searches weigh them."""

from __future__ import annotations

import re

QUESTION = 1
"""It ends in a question: what it asks about is seldom the answer."""

DATED = 2
"""It has words of time, such as "yesterday", "last week", "in 2019"."""

_WORD = re.compile(r"[a-z]+|\d+")
_TIME_WORDS = """
    yesterday today tonight tomorrow last next ago recently soon since morning evening night weekend day days week weeks
    month months year years monday tuesday wednesday thursday friday saturday sunday january february march april may
    june july august september october november december
"""
_DATED = frozenset([*_TIME_WORDS.split(), *map(str, range(1900, 2100))])
_QUESTION = re.compile(r"[?？؟]\s*(\[[^\]]*\]\s*)?\Z")
_ASKS_WHEN = re.compile(r"\b(when|how long|(what|which) (date|day|month|year|time))\b", re.IGNORECASE)
_LOOKED_AT = 4096


def of(text: str) -> int:
    """Return a text's bits; of a long one the beginning and the end are looked at."""
    found = 0 if _DATED.isdisjoint(_WORD.findall(text[:_LOOKED_AT].lower())) else DATED
    return found | (QUESTION if _QUESTION.search(text[-_LOOKED_AT:]) else 0)


def asks_when(question: str) -> bool:
    """Tell if a question asks for a time."""
    return _ASKS_WHEN.search(question) is not None
