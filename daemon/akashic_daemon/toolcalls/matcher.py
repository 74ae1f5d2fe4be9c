"""Following a grammar character by character: whether a text conforms to it, may become one that does, or can't any more.

For engines that bring no grammar of their own, and for asking before llama.cpp is told (it aborts the process when it is
given text that its grammar refuses). Reads the GBNF that `gbnf` writes. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[a-zA-Z][a-zA-Z0-9-]*)(?P<defines>\s*::=)?|(?P<literal>"(?:[^"\\]|\\.)*")|(?P<chars>\[(?:[^\]\\]|\\.)*\])"""
    r"""|(?P<times>\{[0-9]+(?:,[0-9]*)?\})|(?P<mark>[()|*+?.]))"""
)
_ESCAPE = re.compile(r"\\(?:x(..)|u(....)|U(........)|(.))", re.DOTALL)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True)
class _Chars:
    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def has(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.negated


_Symbol = _Chars | str
_Sequence = tuple[_Symbol, ...]
_Stack = tuple[_Symbol, "_Stack"] | None


class Grammar:
    """A grammar's rules. Raises ValueError for a text that is none."""

    def __init__(self, text: str) -> None:
        self._rules: dict[str, list[_Sequence]] = {}
        self._made = 0
        self._tokens = _tokens(text)
        self._at = 0
        while self._at < len(self._tokens):
            kind, name = self._next()
            if kind != "defines":
                raise ValueError(f"a rule is expected, not {name!r}")
            self._rules[name] = self._alternatives()
        self._check()

    def _check(self) -> None:
        """Refuse rules that aren't there, and those that begin with themselves: they would be opened for ever."""
        named = {s for rule in self._rules.values() for sequence in rule for s in sequence if isinstance(s, str)}
        if missing := (named | {"root"}) - self._rules.keys():
            raise ValueError(f"there is no rule {min(missing)!r}")
        empty: set[str] = set()
        size = -1
        while size != len(empty):
            size = len(empty)
            empty |= {n for n, rule in self._rules.items() if any(all(s in empty for s in seq) for seq in rule)}
        begins = {n: _beginnings(rule, empty) for n, rule in self._rules.items()}
        open_, done = set[str](), set[str]()
        for name, first in begins.items():
            stack = [(name, iter(first))]
            while stack:
                at, following = stack[-1]
                open_.add(at)
                rule_name = next((n for n in following if n not in done), None)
                if rule_name is None:
                    done.add(at)
                    open_.discard(at)
                    stack.pop()
                elif rule_name in open_:
                    raise ValueError(f"the rule {rule_name!r} begins with itself")
                else:
                    stack.append((rule_name, iter(begins[rule_name])))

    def start(self) -> Progress:
        """Return where nothing has been said yet."""
        return Progress(self, frozenset(self._opened([("root", None)])))

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _alternatives(self) -> list[_Sequence]:
        out = [self._sequence()]
        while self._peek() == ("mark", "|"):
            self._next()
            out.append(self._sequence())
        return out

    def _sequence(self) -> _Sequence:
        out: list[_Symbol] = []
        while (token := self._peek())[0] not in ("end", "defines") and token not in (("mark", "|"), ("mark", ")")):
            kind, text = self._next()
            item: _Sequence
            if kind == "name":
                item = (text,)
            elif kind == "literal":
                item = tuple(_Chars(((char, char),)) for char in _unescaped(text[1:-1]))
            elif kind == "chars":
                item = (_class(text[1:-1]),)
            elif text == "(":
                item = (self._rule(self._alternatives()),)
                if self._next() != ("mark", ")"):
                    raise ValueError("a group isn't closed")
            elif text == ".":
                item = (_Chars((), negated=True),)
            else:
                raise ValueError(f"{text!r} repeats nothing")
            out.extend(self._repeated(item))
        return tuple(out)

    def _repeated(self, item: _Sequence) -> _Sequence:
        kind, text = self._peek()
        if kind == "mark" and text in "*+?":
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[text]
        elif kind == "times":
            low, comma, high = text[1:-1].partition(",")
            least, most = int(low), int(high) if high else None if comma else int(low)
        else:
            return item
        self._next()
        if most is None:
            loop = self._rule([])
            self._rules[loop] = [(*item, loop), ()]
            return (*item * least, loop)
        rest: _Sequence = ()
        for _ in range(most - least):
            rest = (self._rule([(*item, *rest), ()]),)
        return (*item * least, *rest)

    def _rule(self, alternatives: list[_Sequence]) -> str:
        self._made += 1
        name = f"*{self._made}"
        self._rules[name] = alternatives
        return name

    def _opened(self, stacks: list[_Stack]) -> set[_Stack]:
        """Replace rules on top of stacks by what they begin with."""
        out: set[_Stack] = set()
        seen: set[_Stack] = set()
        while stacks:
            stack = stacks.pop()
            if stack in seen:
                continue
            seen.add(stack)
            if stack is None or isinstance(stack[0], _Chars):
                out.add(stack)
                continue
            for sequence in self._rules[stack[0]]:
                below = stack[1]
                for symbol in reversed(sequence):
                    below = (symbol, below)
                stacks.append(below)
        return out

    def after(self, stacks: frozenset[_Stack], char: str) -> frozenset[_Stack]:
        """Return the stacks after one more character."""
        moved = [s[1] for s in stacks if s is not None and isinstance(s[0], _Chars) and s[0].has(char)]
        return frozenset(self._opened(moved))


class Progress:
    """What a grammar allows next. Immutable; remembers what was asked of it."""

    def __init__(self, grammar: Grammar, stacks: frozenset[_Stack]) -> None:
        self._grammar = grammar
        self._stacks = stacks
        self._following: dict[str, Progress] = {}

    @property
    def is_possible(self) -> bool:
        """Whether what was said can still become a text that conforms."""
        return bool(self._stacks)

    @property
    def may_end(self) -> bool:
        """Whether what was said conforms as it is."""
        return None in self._stacks

    def after(self, text: str) -> Progress:
        """Return where one is after some more text."""
        at = self
        for char in text:
            if not at._stacks:
                break
            following = at._following.get(char)
            if following is None:
                following = at._following[char] = Progress(at._grammar, at._grammar.after(at._stacks, char))
            at = following
        return at


def _beginnings(rule: list[_Sequence], empty: set[str]) -> set[str]:
    """Return the rules that a rule may begin with."""
    out: set[str] = set()
    for sequence in rule:
        for symbol in sequence:
            if isinstance(symbol, str):
                out.add(symbol)
            if symbol not in empty:
                break
    return out


@lru_cache(maxsize=32)
def grammar_of(text: str) -> Grammar:
    """Return a grammar, parsed once."""
    return Grammar(text)


def _tokens(text: str) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"no grammar: {text[at : at + 40]!r}")
        at = found.end()
        kind = "defines" if found["defines"] else str(found.lastgroup)
        out.append((kind, found["name"] if kind in ("name", "defines") else found[0].strip()))
    return out


def _unescaped(text: str) -> str:
    def char(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        return chr(int(code, 16)) if code else _PLAIN.get(found[4], found[4])

    return _ESCAPE.sub(char, text)


def _class(text: str) -> _Chars:
    negated = text.startswith("^")
    units = re.findall(r"\\(?:x..|u....|U........|.)|[^\\]", text[negated:], re.DOTALL)
    chars = [(_unescaped(unit), unit == "-") for unit in units]
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(chars):
        if at + 2 < len(chars) and chars[at + 1][1]:
            ranges.append((chars[at][0], chars[at + 2][0]))
            at += 3
        else:
            ranges.append((chars[at][0], chars[at][0]))
            at += 1
    return _Chars(tuple(ranges), negated)
