"""Index terms of a text: stems of words, pairs of neighbours in scripts without spaces, symbols such as emoji.

Words that carry nothing (`STOPWORDS`) are no terms. The same function serves texts and questions.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from akashic_daemon.memory.porter import stem

_CARRY_NOTHING = """
    a about after again all also am an and any are as at be because been before being but by can could did do does doing
    don down during each few for from further had has have having he her here hers him his how i if in into is it its
    just ll me more most my no nor not of off on once only or other our ours out over own re s same she should so some
    such t than that the their theirs them then there these they this those through to too under until up us ve very was
    we were what when where which while who whom why will with would you your yours d m let get got
"""
STOPWORDS = frozenset(_CARRY_NOTHING.split())
_KNOWN = 1024
_LONGEST_KNOWN = 4096
LONGEST_TERM = 64
"""Longer words are cut: base64 and minified code are no words, but their beginning may be asked for."""

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\u0e00-\u0e7f\U00020000-\U0003134f"
_PIECE = re.compile(
    rf"(?P<run>[{_UNSPACED}]+)|(?P<word>[^\W_{_UNSPACED}]+)|(?P<symbol>[\u2600-\u27bf\U0001f300-\U0001faff])"
)
# The sign comes first: a look behind at each letter takes longer than all else.
_APOSTROPHE = re.compile(r"['’](?<=\w['’])(?:s|t|re|ve|ll|d|m)\b")


def terms(text: str) -> list[str]:
    """Return the terms of a text in order, repeats kept."""
    return list(_known(text)) if len(text) <= _LONGEST_KNOWN else _terms(text)


@lru_cache(maxsize=_KNOWN)
def _known(text: str) -> tuple[str, ...]:
    """Return the terms of a turn: while it is taken in, its terms are asked for several times."""
    return tuple(_terms(text))


def _terms(text: str) -> list[str]:
    if text.isascii():
        return [stem(word) for word in _ascii_words(text.lower()) if word not in STOPWORDS]
    found: list[str] = []
    for piece in _PIECE.finditer(_APOSTROPHE.sub(" ", _plain(text))):
        value = piece.group()
        if piece.lastgroup == "run":
            found += [value] if len(value) == 1 else [value[i : i + 2] for i in range(len(value) - 1)]
        elif piece.lastgroup == "symbol":
            found.append(value)
        elif value not in STOPWORDS:
            found.append(stem(value[:LONGEST_TERM]))
    return found


_ASCII_WORD = re.compile(r"[a-z0-9]+")


def _ascii_words(text: str) -> list[str]:
    return [word[:LONGEST_TERM] for word in _ASCII_WORD.findall(_APOSTROPHE.sub(" ", text))]


def _plain(text: str) -> str:
    """Return the text folded: compatible forms as one, no case, no accents."""
    folded = unicodedata.normalize("NFKD", text).casefold()
    return unicodedata.normalize("NFC", "".join(c for c in folded if not unicodedata.combining(c)))
