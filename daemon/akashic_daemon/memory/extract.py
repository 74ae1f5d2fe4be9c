"""Extractive compaction: of what was said in prose, the clauses that say most are kept, under one budget for everything.

No model. A clause's worth is the IDF mass of its terms per character; a term that was kept or seen before counts less
each time. The budget isn't shared out by chunk: `Worths` remembers how much text of which worth the namespace has had, and
gives the one cutoff at which the wanted share of it stays. So a chunk of small talk keeps little and one full of facts
nearly all, and compacting a chunk costs the same however long the history is.

Pinned clauses (identifiers, paths, numbers, lasting wishes) stay whatever the budget, word for word.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from akashic_daemon.memory.clauses import Clause, clauses, shortened
from akashic_daemon.memory.words import terms

_FAMILIAR = 0.95
"""How much of its worth a term has left each time it comes again."""
_QUESTION = 0.6
_OVERHEAD_CHARS = 12
"""What a clause costs besides its own characters, so that crumbs of a word or two aren't preferred."""
_LABEL_CHARS = 3
_SHORT_ANSWER_TERMS = 3
_BINS_PER_DOUBLING = 32
_WORTHLESS, _PINNED = -(1 << 20), 1 << 20
_FADING = 0.8
"""What a chunk counts for after each later one: about the last five set the cutoff."""
_LEAST_CHARS = 0.01
_MOST_SPARE = 0.2


@dataclass(frozen=True, slots=True)
class Spoken:
    """A turn of prose."""

    speaker: str
    text: str

    @property
    def length_chars(self) -> int:
        """Return its length in a transcript, with the speaker's name."""
        return len(self.speaker) + 2 + len(self.text)


@dataclass(frozen=True, slots=True)
class Extract:
    """What is left of each turn, in order; empty where nothing is. rho: actual length over raw length."""

    texts: tuple[str, ...]
    raw_chars: int
    kept_chars: int

    @property
    def rho(self) -> float:
        """Return the share of the raw length that is kept, labels of speakers included on both sides."""
        return self.kept_chars / self.raw_chars if self.raw_chars else 1.0


@dataclass(frozen=True, slots=True)
class Weighed:
    """A clause as it would be kept, with what it costs and what it is worth per character (infinite: pinned)."""

    turn: int
    text: str
    cost_chars: int
    worth: float

    @property
    def is_pinned(self) -> bool:
        """Whether it stays whatever the budget."""
        return self.worth == math.inf


@dataclass(slots=True)
class Worths:
    """How many characters of each worth there were lately: a histogram of fixed size, for all chunks of a namespace.

    Older chunks fade, because what comes later says less that is new. Room that a chunk left is given to those after it.
    """

    rho: float
    chars: dict[int, float] = field(default_factory=dict)
    recent_chars: float = 0.0
    fading: float = _FADING
    earlier_chars: int = 0
    last_chars: int = 0
    kept_chars: int = 0

    def add(self, weighed: Sequence[Weighed], raw_chars: int) -> None:
        """Count a chunk's clauses, once, before its cutoff is asked for."""
        self.chars = {number: chars * self.fading for number, chars in self.chars.items() if chars > _LEAST_CHARS}
        self.recent_chars = self.recent_chars * self.fading + raw_chars
        self.earlier_chars += self.last_chars
        self.last_chars = raw_chars
        for clause in weighed:
            number = _bin(clause.worth)
            self.chars[number] = self.chars.get(number, 0.0) + clause.cost_chars

    def note(self, kept_chars: int) -> None:
        """Tell how much of the last chunk was kept."""
        self.kept_chars += kept_chars

    def cutoff(self) -> float:
        """Return the least worth that is kept now, so that about a share `rho` of all that is said is; 0: all fits.

        To be asked between `add` and `note` of a chunk; without any `note` it is the cutoff of all that was added.
        """
        share = self.rho
        if self.kept_chars:
            spare_chars = self.rho * self.earlier_chars - self.kept_chars
            share += max(-_MOST_SPARE, min(_MOST_SPARE, spare_chars / self.recent_chars))
        room = share * self.recent_chars
        for number in sorted(self.chars, reverse=True):
            room -= self.chars[number]
            if room < 0:
                return _least(number + 1)
        return 0.0


def weigh(turns: Sequence[Spoken], idf: Callable[[str], float], seen: Counter[str]) -> list[Weighed]:
    """Return the turns' clauses without small talk, in order. `seen` counts terms and is updated.

    idf: a term's weight by the namespace's own document frequencies.
    """
    people = frozenset(term for turn in turns for term in terms(turn.speaker))
    found = [list(clauses(number, turn.text, people)) for number, turn in enumerate(turns)]
    weighed: list[Weighed] = []
    for number, of_turn in enumerate(found):
        answered_shortly = number + 1 < len(found) and _is_short_answer(found[number + 1])
        labelled = False
        for clause in of_turn:
            if clause.is_small_talk:
                continue
            text = shortened(clause)
            cost_chars = len(text) + 1 + (0 if labelled else _LABEL_CHARS)
            labelled = True
            worth = _worth(clause, text, idf, seen, is_context=answered_shortly)
            weighed.append(Weighed(number, text, cost_chars, worth))
    return weighed


def _is_short_answer(of_turn: Sequence[Clause]) -> bool:
    """Whether a turn says something that nobody understands without the question before it."""
    count = sum(len(clause.terms) for clause in of_turn)
    return 0 < count <= _SHORT_ANSWER_TERMS and any(not clause.is_small_talk for clause in of_turn)


def _worth(clause: Clause, text: str, idf: Callable[[str], float], seen: Counter[str], *, is_context: bool) -> float:
    distinct = set(clause.terms)
    mass = sum(idf(term) * _FAMILIAR ** seen[term] for term in distinct)
    seen.update(distinct)
    if clause.pinned:
        return math.inf
    if clause.text.endswith(("?", "？")) and not is_context:
        mass *= _QUESTION
    return mass / (len(text) + _OVERHEAD_CHARS)


def _least(number: int) -> float:
    """Return the least worth in a bin."""
    if number >= _PINNED:
        return math.inf
    return 0.0 if number <= _WORTHLESS else 2.0 ** (number / _BINS_PER_DOUBLING)


def _bin(worth: float) -> int:
    if worth == math.inf:
        return _PINNED
    return math.floor(_BINS_PER_DOUBLING * math.log2(worth)) if worth > 0 else _WORTHLESS


def extract(turns: Sequence[Spoken], weighed: Sequence[Weighed], cutoff: float) -> Extract:
    """Return what the cutoff leaves of the turns."""
    texts = joined(clause for clause in weighed if clause.worth >= cutoff)
    kept_chars = sum(len(text) + 1 + _LABEL_CHARS for text in texts.values())
    return Extract(
        tuple(texts.get(number, "") for number in range(len(turns))), sum(t.length_chars for t in turns), kept_chars
    )


def joined(chosen: Iterable[Weighed]) -> dict[int, str]:
    """Return what clauses, given in order, leave of their turns, by these' numbers."""
    parts: dict[int, list[str]] = {}
    for clause in chosen:
        parts.setdefault(clause.turn, []).append(clause.text)
    return {turn: " ".join(texts) for turn, texts in parts.items()}


def labels(speakers: Sequence[str]) -> dict[str, str]:
    """Return the shortest distinct beginning of each speaker's name, one letter where that is enough."""
    names = list(dict.fromkeys(speakers))
    return {name: next(_distinct(name, names), name) for name in names}


def _distinct(name: str, names: Sequence[str]) -> Iterator[str]:
    for length in range(1, len(name)):
        if not any(other != name and other.startswith(name[:length]) for other in names):
            yield name[:length]


def lines(turns: Sequence[Spoken], extracted: Extract) -> str:
    """Return the compacted text: a legend of the speakers, then a line for each turn of which something is left."""
    label = labels([turn.speaker for turn in turns])
    head = ", ".join(f"{short} = {name}" for name, short in label.items() if short != name)
    body = [f"{label[t.speaker]}: {text}" for t, text in zip(turns, extracted.texts, strict=True) if text]
    return "\n".join(([head] if head and body else []) + body)
