"""Selectors: which messages or tokens an operation means, asked of what is visible at its place.

`tool[:-12]` all but the newest 12 visible tool results · `messages 3..5` by number, both ends included ·
`tool older than 4 turns` those that more than 4 answers came after · `tokens 100..200` of the rendered prompt, both ends
included · `thinking[:-2]` the reasoning inside messages · `memory[:-2]` what memory recalled, which is no user's and no
assistant's message. Slices are Python's. The syntax stands in ops.lark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from akashic_daemon.errors import BadRequest
from akashic_daemon.program.ledger import Ledger
from akashic_daemon.program.ranges import Ranges, normal


@dataclass(frozen=True, slots=True)
class Sum:
    """Whole numbers and names of parameters, added up: ((sign, number or name), ...)."""

    terms: tuple[tuple[int, int | str], ...]

    def value(self, parameters: Mapping[str, int]) -> int:
        """Return the number. Raises KeyError on a name that has no value."""
        return sum(sign * (parameters[term] if isinstance(term, str) else term) for sign, term in self.terms)

    @property
    def names(self) -> frozenset[str]:
        """The parameters it reads."""
        return frozenset(term for _, term in self.terms if isinstance(term, str))

    def __str__(self) -> str:
        text = "".join(f" {'-' if sign < 0 else '+'} {term}" for sign, term in self.terms)
        return text[3:] if text.startswith(" + ") else text.replace(" - ", "-", 1)


_BEYOND = 1 << 62

Number = int | Sum
"""Bound selectors hold plain numbers only."""


@dataclass(frozen=True, slots=True)
class BySlice:
    """Visible messages of a kind, in order: all of them, one (`index`), or start:end."""

    kind: str
    index: Number | None = None
    start: Number | None = None
    end: Number | None = None
    sliced: bool = False

    def __str__(self) -> str:
        if self.index is not None:
            return f"{self.kind}[{self.index}]"
        if not self.sliced:
            return self.kind
        return f"{self.kind}[{_blank(self.start)}:{_blank(self.end)}]"


@dataclass(frozen=True, slots=True)
class ByAge:
    """Visible messages of a kind that more than `turns` answers came after."""

    kind: str
    turns: Number

    def __str__(self) -> str:
        return f"{self.kind} older than {self.turns} turns"


@dataclass(frozen=True, slots=True)
class ByNumber:
    """Messages by their place in the history, both ends included."""

    first: Number
    last: Number

    def __str__(self) -> str:
        return f"message {self.first}" if self.first == self.last else f"messages {self.first}..{self.last}"


@dataclass(frozen=True, slots=True)
class ByTokens:
    """Tokens by their place in the rendered prompt, both ends included."""

    first: Number
    last: Number

    def __str__(self) -> str:
        return f"tokens {self.first}..{self.last}"


Selector = BySlice | ByAge | ByNumber | ByTokens


@dataclass(frozen=True, slots=True)
class Selection:
    """Whole messages, or ranges of layout tokens; notes say what was left out and why."""

    messages: tuple[int, ...] = ()
    ranges: Ranges = ()
    notes: tuple[str, ...] = ()


def _blank(value: Number | None) -> str:
    return "" if value is None else str(value)


def names(selector: Selector) -> frozenset[str]:
    """Return the parameters that a selector reads."""
    found: frozenset[str] = frozenset()
    for field in selector.__slots__:
        value = getattr(selector, field)
        if isinstance(value, Sum):
            found |= value.names
    return found


def bind(selector: Selector, parameters: Mapping[str, int]) -> Selector:
    """Return the selector with numbers for names. Raises KeyError on a name that has no value."""
    bound: dict[str, Any] = {}
    for field in selector.__slots__:
        value = getattr(selector, field)
        if isinstance(value, Sum):
            bound[field] = _edge(field, value, value.value(parameters))
    return replace(selector, **bound) if bound else selector


def _edge(field: str, written: Sum, value: int) -> int | None:
    """Return a bound of a slice; counted from the end, 0 is the end and not the beginning."""
    if value == 0 and written.terms[0][0] < 0:
        return {"end": None, "start": _BEYOND}.get(field, value)
    return value


def parse(text: str) -> Selector:
    """Read one selector. Raises ScriptError, which says where and what was expected."""
    from akashic_daemon.program.script import parse_selector

    return parse_selector(text)


def select(selector: Selector, ledger: Ledger) -> Selection:
    """Return what a bound selector means now. Raises BadRequest when it names messages or tokens that don't exist."""
    if isinstance(selector, ByTokens):
        return Selection(ranges=normal([(_number(selector.first), _number(selector.last) + 1)]))
    if isinstance(selector, ByNumber):
        return _by_number(_number(selector.first), _number(selector.last), len(ledger.entries))
    visible = ledger.visible[selector.kind]
    if isinstance(selector, ByAge):
        turns = _number(selector.turns)
        old = bisect_left(visible, ledger.answers[-turns - 1]) if 0 <= turns < len(ledger.answers) else 0
        chosen = visible[:old]
    elif selector.index is not None:
        index = _number(selector.index)
        chosen = [visible[index]] if -len(visible) <= index < len(visible) else []
    elif selector.sliced:
        start = None if selector.start is None else _number(selector.start)
        end = None if selector.end is None else _number(selector.end)
        chosen = visible[start:end]
    else:
        chosen = visible[:]
    if selector.kind == "thinking":
        return _thinking(chosen, ledger)
    return Selection(tuple(_with_their_ends(chosen, ledger) if selector.kind == "memory" else chosen))


def _by_number(first: int, last: int, count: int) -> Selection:
    if first < 0:
        raise BadRequest(f"there is no message {first}", hint="numbers start at 0; for the newest write messages[-1]")
    if last < first:
        raise BadRequest(f"the range ends before it starts: {first}..{last}")
    if last >= count:
        raise BadRequest(f"message {last} doesn't exist there yet; {count} messages precede it")
    return Selection(tuple(range(first, last + 1)))


def _with_their_ends(recalled: list[int], ledger: Ledger) -> list[int]:
    """Return recalled messages with the word after each that stands for an answer to it."""
    out: list[int] = []
    for message in recalled:
        out.append(message)
        after = message + 1
        if after < len(ledger.entries) and ledger.entries[after].recalled and ledger.is_visible(after):
            out.append(after)
    return out


def _thinking(chosen: list[int], ledger: Ledger) -> Selection:
    known = [ledger.entries[m].thinking for m in chosen]
    unknown = sum(1 for ranges in known if not ranges)
    notes = (f"thinking: of {unknown} messages the reasoning can't be told from the rest; it stays",) if unknown else ()
    return Selection(ranges=normal(r for ranges in known for r in ranges), notes=notes)


def _number(value: Number) -> int:
    assert isinstance(value, int), f"a selector with a free name: {value}"
    return value
