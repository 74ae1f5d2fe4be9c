"""Regular expressions of JSON schemas as grammars, as far as both can say the same.

What they find is text; what the grammar matches is that text as it stands inside a JSON string, with its escapes. A pattern
that isn't anchored may have anything before and behind. Assertions, back references and lazy meanings have no equal.
"""

from __future__ import annotations

from akashic_daemon.toolcalls.gbnf import PLAIN, char_class, either, literal, without

_MOST_CHARS = 2000
_MOST_REPEATS = 500
_MOST_PARTS = 2000
"""llama.cpp writes counts out, and refuses what becomes larger."""
_LAST = 0x10FFFF
_DIGITS = [(0x30, 0x39)]
_WORD = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE = [(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]  # fmt: skip
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS = {"n": 0x0A, "t": 0x09, "r": 0x0D, "f": 0x0C, "v": 0x0B, "0": 0x00}
_SHORT = {0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r", 0x22: '\\"', 0x5C: "\\\\"}
_UNESCAPED = [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, _LAST)]
_LINE_ENDS = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
_ANYTHING = f'( {PLAIN} | "\\\\" ( ["\\\\/bfnrt] | "u00" [01] [0-9a-fA-F] ) )*'

_Ranges = list[tuple[int, int]]


class UnknownRegex(ValueError):
    """Something that has no equal in a grammar; says what."""


def regex_body(pattern: str) -> str:
    """Return what matches the inside of a JSON string that the pattern finds. Raises UnknownRegex."""
    if len(pattern) > _MOST_CHARS:
        raise UnknownRegex(f"longer than {_MOST_CHARS} characters")
    return _Reader(pattern).read()


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._may_be_empty = False
        """Whether what was read last may match nothing."""
        self._parts = 0
        """How many characters it has when its counts are written out."""

    def read(self) -> str:
        body = self._alternatives(is_top=True)
        if self._at < len(self._pattern):
            raise UnknownRegex("a parenthesis that closes nothing")
        return body

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise UnknownRegex("it ends too early")
        self._at += 1
        return char

    def _takes(self, text: str) -> bool:
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _alternatives(self, *, is_top: bool = False) -> str:
        out = [self._sequence(is_top=is_top)]
        may_be_empty, size = self._may_be_empty, self._parts
        while self._takes("|"):
            out.append(self._sequence(is_top=is_top))
            may_be_empty, size = may_be_empty or self._may_be_empty, size + self._parts
        self._may_be_empty, self._parts = may_be_empty, size
        return either(out)

    def _sequence(self, *, is_top: bool) -> str:
        parts: list[str] = []
        starts = is_top and self._takes("^")
        ends = False
        may_be_empty, size = True, 0
        while self._peek() not in ("", "|", ")"):
            if is_top and self._peek() == "$":
                self._at += 1
                ends = True
                if self._peek() not in ("", "|"):
                    raise UnknownRegex("$ within it")
                break
            parts.append(self._repeated(self._atom()))
            may_be_empty, size = may_be_empty and self._may_be_empty, size + self._parts
        self._may_be_empty, self._parts = may_be_empty, size
        if is_top:
            parts = [*([] if starts else [_ANYTHING]), *parts, *([] if ends else [_ANYTHING])]
        return "( " + " ".join(parts) + " )" if parts else '""'

    def _atom(self) -> str:
        char = self._next()
        if char == "(":
            return self._group()
        self._may_be_empty, self._parts = False, 1
        if char == "[":
            return _chars(self._set())
        if char == ".":
            return _chars(without(_LINE_ENDS))
        if char in "^$":
            raise UnknownRegex(f"{char} within it")
        if char in "*+?{":
            raise UnknownRegex("a count of nothing")
        if char == "\\":
            return _chars(self._escape(in_set=False))
        return _chars([(ord(char), ord(char))])

    def _group(self) -> str:
        if self._takes("?"):
            if self._takes("<") and self._peek() not in ("=", "!"):
                self._at = self._pattern.find(">", self._at) + 1
                if not self._at:
                    raise UnknownRegex("a group without a name")
            elif not self._takes(":"):
                raise UnknownRegex("an assertion")
        self._depth += 1
        if self._depth > 30:
            raise UnknownRegex("groups in more than 30 groups")
        body = self._alternatives()
        self._depth -= 1
        if not self._takes(")"):
            raise UnknownRegex("a group isn't closed")
        return body

    def _repeated(self, atom: str) -> str:
        char = self._peek()
        if char in ("*", "+", "?") and char:
            self._at += 1
            times, least, most = char, int(char == "+"), 1
            is_count = char != "?"
        elif char == "{":
            end = self._pattern.find("}", self._at)
            low, comma, high = self._pattern[self._at + 1 : end].partition(",") if end > 0 else ("", "", "")
            if not low.isdecimal() or (high and not high.isdecimal()):
                raise UnknownRegex("a brace that counts nothing")
            self._at = end + 1
            if max(int(low), int(high or 0)) > _MOST_REPEATS or (high and int(high) < int(low)):
                raise UnknownRegex(f"a count over {_MOST_REPEATS}, or upside down")
            times, least, most = f"{{{int(low)}{comma}{high}}}", int(low), max(int(low), int(high or 1))
            is_count = bool(comma) or most > 1
        else:
            return atom
        if is_count and self._may_be_empty:
            raise UnknownRegex("a count of what may be nothing")
        self._parts *= most
        if self._parts > _MOST_PARTS:
            raise UnknownRegex(f"counts of counts over {_MOST_PARTS}")
        self._may_be_empty = self._may_be_empty or not least
        self._takes("?")  # a lazy count matches the same texts
        if self._peek() in ("+", "*", "{") and self._peek():
            raise UnknownRegex("a count of a count")
        return f"{atom}{times}"

    def _set(self) -> _Ranges:
        negated = self._takes("^")
        out: _Ranges = []
        while not self._takes("]"):
            low = self._member()
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", "") and len(low) == 1:
                self._at += 1
                high = self._member()
                if len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    raise UnknownRegex("a range that is none")
                out.append((low[0][0], high[0][0]))
            else:
                out += low
        return without(out) if negated else out

    def _member(self) -> _Ranges:
        char = self._next()
        return self._escape(in_set=True) if char == "\\" else [(ord(char), ord(char))]

    def _escape(self, *, in_set: bool) -> _Ranges:
        char = self._next()
        if char.lower() in _CLASSES:
            ranges = _CLASSES[char.lower()]
            return ranges if char.islower() else without(ranges)
        if char in _CONTROLS:
            return [(_CONTROLS[char], _CONTROLS[char])]
        if char == "b" and in_set:
            return [(0x08, 0x08)]
        if char in "xu":
            length = 2 if char == "x" else 4
            digits = self._pattern[self._at : self._at + length]
            try:
                code = int(digits, 16) if len(digits) == length else -1
            except ValueError:
                code = -1
            if code < 0 or 0xD800 <= code <= 0xDFFF:
                raise UnknownRegex(f"the escape \\{char}")
            self._at += length
            return [(code, code)]
        if char.isalnum():
            raise UnknownRegex(f"the escape \\{char}")
        return [(ord(char), ord(char))]


def _chars(ranges: _Ranges) -> str:
    """Return what matches one of these characters as a JSON string has it."""
    options: list[str] = []
    plain = [(max(low, a), min(high, b)) for low, high in ranges for a, b in _UNESCAPED if max(low, a) <= min(high, b)]
    if plain:
        options.append(char_class(plain))
    escaped = [code for code in (*range(0x20), 0x22, 0x5C) if any(low <= code <= high for low, high in ranges)]
    options += [literal(_SHORT.get(code, f"\\u{code:04x}")) for code in escaped]
    if not options:
        raise UnknownRegex("a set without characters")
    return either(options)
