"""A turn's clauses: where they lie in its text, which of them are small talk, and which must never be lost.

Clauses are pieces of the text as it was said; `shortened` leaves words out of them and never changes one. The word lists
are English: text in other languages is cut at its punctuation, and nothing of it is small talk or left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from akashic_daemon.memory.words import terms

_LONG_CHARS = 60
"""Only clauses longer than this are cut within a sentence."""

_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|\n+|(?<=[。！？])|\s+(?=\[shares )")
_WITHIN = re.compile(r"(?:[,;:]|\s[-–—])\s+|\s+(?=(?:and|but|because|so that|which|while|when|since|although) )")
_LEADING = re.compile(
    r"(?:(?:oh|wow|yeah|yes|yep|yup|hey|hi|hello|aww?|haha|hmm|ok|okay|cool|well|thanks|thank you|great|nice|awesome|sure|"
    r"absolutely|definitely|totally|exactly|of course|for sure|by the way|you know|i mean|so|anyway|actually|honestly)"
    r"\b(?: (?:so much|a lot|again|there))?[\s,!.:-]+)+",
    re.IGNORECASE,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SMALL_TALK = _words(
    """wow yeah yes no hey hi hello oh thank great good nice awesom cool amaz love glad happi hear sound look see sure okai
    ok realli absolut definit total well thing way know think thought mean bye care take soon catch later talk chat wonder
    fantast incred sweet lovely lovel inspir congrat congratul impress keep go fun sorri wish best luck excit proud forward
    much lot aw haha yep agre right true tell share feel like that what new up time guess dai done job work"""
)
_LEFT_OUT = _words(
    """a an the just really so very pretty such quite kinda totally absolutely definitely actually truly
    i i'm i've it's that's there's is are am be been being"""
)
"""Words that a note does without. Negations, modal verbs, tenses other than the present and prepositions stay."""
_ENGLISH = _words("the and to of is i it my you that was for with have we i'm it's that's")

_PINNED = re.compile(
    r"https?://|[\w.-]{1,64}@[\w-]{1,64}\.\w|(?:^|[\s\"'(`])~?\.{0,2}/[\w.-]+|\w/\w|\b\w+\.[a-z]{1,4}\b(?=[\s,:)`]|$)"
    r"|`[^`]+`|\b[A-Za-z]+_\w+|\b[a-z]+[A-Z]\w*|\b\w+\(\)|\d|\b[A-Z]{3,}\b|--\w"
)
_CONSTRAINT = re.compile(
    r"\b(?:never|always|must(?:n't)?|only ever|do not|don't (?:use|touch|change|delete|remove|add|run|edit|forget)|"
    r"make sure|allerg\w+|remember (?:that|to)|prefer(?:s|red)?|instead of|not allowed|required?|required to|please (?:don't|use|keep))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Clause:
    """A piece of a turn's text. `pinned`: it holds an identifier, a path, a number, or what somebody asks for for good."""

    turn: int
    text: str
    terms: tuple[str, ...]
    pinned: bool

    @property
    def is_small_talk(self) -> bool:
        """Whether it says nothing but courtesies."""
        return not self.pinned and all(term in _SMALL_TALK for term in self.terms)


def clauses(turn: int, text: str, people: frozenset[str] = frozenset()) -> Iterator[Clause]:
    """Yield a turn's clauses in order, courtesies in front of them cut off.

    people: index terms of the names of those who talk: being called by name is no content.
    """
    for sentence in _SENTENCE_END.split(text):
        for piece in _cut(sentence):
            plain = _LEADING.sub("", piece, count=1) if _LEADING.match(piece) else piece
            found = tuple(term for term in terms(plain) if term not in people)
            pinned = bool(_PINNED.search(plain) or _CONSTRAINT.search(plain))
            if found or pinned:
                yield Clause(turn, plain.strip(), found, pinned)


def shortened(clause: Clause) -> str:
    """Return the clause's text as a note would have it; a pinned one, or one in another language, as it is."""
    words = clause.text.split()
    plain = [word.lower().replace("’", "'").strip(".,!?") for word in words]
    if clause.pinned or not _ENGLISH.intersection(plain):
        return clause.text
    kept = [word for word, key in zip(words, plain, strict=True) if key not in _LEFT_OUT]
    if kept and kept[0] == "and":
        del kept[0]
    return " ".join(kept) or clause.text


def _cut(sentence: str) -> Iterator[str]:
    """Yield the sentence, or its parts when it is long, each with its own punctuation."""
    if len(sentence) <= _LONG_CHARS:
        yield sentence
        return
    begin = 0
    for match in _WITHIN.finditer(sentence):
        if match.end() - begin >= _LONG_CHARS // 2 and len(sentence) - match.end() >= _LONG_CHARS // 3:
            yield sentence[begin : match.end()]
            begin = match.end()
    yield sentence[begin:]
