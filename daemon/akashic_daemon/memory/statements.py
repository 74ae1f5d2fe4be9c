"""Statements with a subject and a slot, and how two of them stand to each other: the rules of reconciliation, as values.

Only sentences of a few plain forms are statements ("I live in Lyon", "our port is 8080"); their slots hold one value at a
time. A statement supersedes another one only with the same subject and the same slot, when it was said later and the slot
is one that changes, or its words say so; otherwise two different values contradict each other, and both stay as a dated
pair. What isn't understood stays text. The forms are English.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from akashic_daemon.memory.words import terms
from akashic_daemon.store.memory.rows import Relation


@dataclass(frozen=True, slots=True)
class Statement:
    """That `subject`'s `slot` is, or if negated isn't, `value`. subject and slot are folded index terms.

    changes: its words, or its slot, say that the value may differ from an earlier one.
    """

    subject: str
    slot: str
    value: str
    text: str
    is_negated: bool = False
    changes: bool = False

    def says_the_same_as(self, other: Statement) -> bool:
        """Whether both give the slot the same value, words that carry nothing aside."""
        return self.is_negated == other.is_negated and self.is_of_same_value(other)

    def is_of_same_value(self, other: Statement) -> bool:
        """Whether both name the same value, said of it or denied."""
        return _key(self.value) == _key(other.value)

    def is_about_same(self, other: Statement) -> bool:
        """Whether both are about one slot of one subject."""
        return (self.subject, self.slot) == (other.subject, other.slot)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a pair stands. first_is_newer: which one supersedes, or is the newer one of a contradiction."""

    relation: Relation
    first_is_newer: bool
    reason: str


_VALUE = r"(?P<value>[^,.;!?\n]{1,60}?)"
_END = r"(?=\s*(?:[,;!?\n]|\.(?:\s|$)|$|\b(?:and|but|because|since|so|now|anymore|any more|these days|for|with|which|where|after|until)\b))"
_NOW = r"(?:now |currently |actually |recently |just |finally |no longer )*"
_NAMED = r"(?P<value>[A-Z][\w'-]+(?: [A-Z][\w'-]+)*)(?!\w)"
_EXACT = r"(?P<value>`[^`]+`|\"[^\"]+\"|[\w./:@-]{0,60}[\d_/][\w./:@-]{0,60})"
_BE = r"(?:is|are|=|:|(?:has|have) been (?:moved|changed) to|moved to|changed to|will be|was (?:moved|changed) to)"

_CHANGE = re.compile(
    r"\b(?:now|no longer|not anymore|any ?more|moved|changed|switched|instead|from now on|renamed)\b",
    re.IGNORECASE,
)
_NEGATED = re.compile(r"\b(?:no longer|not|never)\b|n't\b", re.IGNORECASE)
_UNSURE = re.compile(
    r"\?|\b(?:if|would|wouldn't|could|might|maybe|perhaps|wish|imagine|hope|should|plan(?:ning)? to|want to|going to|used to|think)\b",
    re.IGNORECASE,
)
_Slot = Callable[[re.Match[str]], str]


def _fixed(slot: str) -> _Slot:
    return lambda _match: slot


def _named(match: re.Match[str]) -> str:
    return _key(match["slot"])


_OF_SPEAKER: tuple[tuple[re.Pattern[str], _Slot, bool], ...] = tuple(
    (re.compile(pattern), slot, changes)
    for pattern, slot, changes in (
        (rf"\bI(?: do not| don't)? {_NOW}live in {_NAMED}", _fixed("home"), True),
        (rf"\bI(?:'m| am) {_NOW}(?:living|based) in {_NAMED}", _fixed("home"), True),
        (rf"\bI(?:'ve| have)? {_NOW}moved to {_NAMED}", _fixed("home"), True),
        (rf"\bI(?: do not| don't)? {_NOW}work (?:at|for) {_NAMED}", _fixed("employer"), True),
        (rf"\bI(?:'m| am) {_NOW}working (?:at|for) {_NAMED}", _fixed("employer"), True),
        (rf"\bI {_NOW}work as an? {_VALUE}{_END}", _fixed("job"), True),
        (rf"\b[Mm]y name is {_NAMED}", _fixed("name"), False),
        (rf"\b[Mm]y birthday is (?:on )?{_VALUE}{_END}", _fixed("birthday"), False),
        (
            rf"\b[Mm]y {_NOW}(?P<slot>favou?rite (?!one\b|thing\b|part\b)[\w-]+(?: [\w-]+)?) is {_NOW}{_VALUE}{_END}",
            _named,
            False,
        ),
    )
)
_OF_THINGS: tuple[tuple[re.Pattern[str], bool], ...] = (
    (re.compile(rf"\b(?:[Tt]he|[Oo]ur) (?P<slot>(?:[\w-]+ ){{0,3}}?[\w-]+) {_BE} {_NOW}(?:not )?(?:on |at )?{_EXACT}{_END}"), True),
    (re.compile(r"\b[Ww]e(?: don't| do not)? (?:now |always |no longer )*use (?P<value>[\w.+-]+) for (?P<slot>[\w -]{1,30}?)" + _END), True),
    (re.compile(r"(?:^|\n|\b[Ss]et )(?P<slot>[A-Z][A-Z\d_]{2,})\s?(?:=|to)\s?(?P<value>[^\s,;]+?)" + _END), True),
)  # fmt: skip
SHARED = ""
"""The subject of what is said of things: it belongs to the namespace, whoever says it."""


def statements(speaker: str, text: str) -> Iterator[Statement]:
    """Yield the statements in a message; questions, wishes and what might be are none."""
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", text):
        if _UNSURE.search(sentence):
            continue
        changed = _CHANGE.search(sentence) is not None
        for pattern, slot, changes in _OF_SPEAKER:
            for match in pattern.finditer(sentence):
                yield _statement(_key(speaker), slot(match), match, sentence, changes=changes or changed)
        for pattern, changes in _OF_THINGS:
            for match in pattern.finditer(sentence):
                yield _statement(SHARED, _named(match), match, sentence, changes=changes and changed)


def stated(subject: str, slot: str, value: str, text: str) -> Statement:
    """Return a statement whose parts somebody else found; its words tell if it denies the value, or tells of a change."""
    return Statement(
        _key(subject),
        _key(slot),
        value.strip(),
        text,
        _NEGATED.search(text) is not None,
        _CHANGE.search(text) is not None,
    )


def _statement(subject: str, slot: str, match: re.Match[str], sentence: str, *, changes: bool) -> Statement:
    value = match["value"].strip("`\"' ").rstrip(".")
    negated = _NEGATED.search(match.group()) is not None
    return Statement(subject, slot, value, sentence.strip(), negated, changes)


def _key(text: str) -> str:
    return " ".join(terms(text)) or text.strip().casefold()


def judge(first: Statement, second: Statement, first_at_s: float | None, second_at_s: float | None) -> Verdict | None:
    """Return how two statements stand to each other by the times they tell of; None when neither bears on the other.

    Without two different times the first counts as the newer one, and none supersedes.
    Two that say the same are linked, so that one of them is shown, with the provenance of both.
    """
    if not first.is_about_same(second):
        return None
    dated = first_at_s is not None and second_at_s is not None and first_at_s != second_at_s
    first_is_newer = not dated or (first_at_s or 0.0) > (second_at_s or 0.0)
    if first.says_the_same_as(second):
        return Verdict(Relation.LINK, first_is_newer, "says the same")
    if first.is_negated and second.is_negated:
        return None
    if first.is_negated != second.is_negated and not first.is_of_same_value(second):
        return None
    newer, older = (first, second) if first_is_newer else (second, first)
    told = f"{newer.slot or 'it'}: {_told(newer)} after {_told(older)}"
    if dated and newer.changes:
        return Verdict(Relation.SUPERSEDES, first_is_newer, told)
    why = "nothing says that it changed" if dated else "which came later isn't known"
    return Verdict(Relation.CONTRADICTS, first_is_newer, f"{told}; {why}")


def _told(statement: Statement) -> str:
    return ("not " if statement.is_negated else "") + statement.value
