"""Writing GBNF, llama.cpp's grammar notation: rules with names of their own, literals, and what JSON is made of.

Whitespace is bounded everywhere: a small model that may write blanks for ever does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from akashic_daemon.errors import BadRequest

MOST_BYTES = 1 << 20
_HEX = "[0-9a-fA-F]"
_LAST = 0x10FFFF
PLAIN = r"[\x20\x21\x23-\x5B\x5D-\uD7FF\uE000-\U0010FFFF]"
"""What matches a character that stands in a JSON string as it is."""
_BASE = {
    "ws": r'( " " | "\n" [ \t]{0,40} )?',
    # Code points are listed, not excluded: llama.cpp lets bytes that are no UTF-8 pass for code points that there aren't.
    "char": rf'{PLAIN} | "\\" ( ["\\/bfnrt] | "u" uni )',
    # Halves of a surrogate pair are no characters: only both together may be written.
    "uni": rf'[0-9a-cA-CeEfF] {_HEX}{{3}} | [dD] [0-7] {_HEX}{{2}} | [dD] [89abAB] {_HEX}{{2}} "\\u" [dD] [c-fC-F] {_HEX}{{2}}',
    "string": r'"\"" char* "\""',
    "integer": r'"-"? ( "0" | [1-9] [0-9]{0,15} )',
    "number": r'"-"? ( ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]{1,20} )? | [0-9] ( "." [0-9]{1,20} )? [eE] ( [-+]? [0-9]{1,2} | "+"? [12] [0-9]{2} | "-" [0-9]{3} ) )',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "value": "string | number | boolean | null | object | array",
    "pair": 'string ws ":" ws value',
    "object": '"{" ws ( pair ( ws "," ws pair )* ws )? "}"',
    "array": '"[" ws ( value ( ws "," ws value )* ws )? "]"',
}
_NEEDS = {
    "char": ("uni",),
    "string": ("char",),
    "value": ("string", "number", "boolean", "null", "object", "array"),
    "pair": ("string", "ws", "value"),
    "object": ("ws", "pair"),
    "array": ("ws", "value"),
}


class Rules:
    """The rules of one grammar. Equal bodies share a rule."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._size = 0

    def base(self, name: str) -> str:
        """Make one of JSON's own rules known and return its name."""
        if name not in self._bodies:
            self._bodies[name] = _BASE[name]
            for needed in _NEEDS.get(name, ()):
                self.base(needed)
        return name

    def add(self, body: str) -> str:
        """Return the name of a rule with this body."""
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = self.reserve()
            self.fill(name, body)
        return name

    def reserve(self) -> str:
        """Return the name of a rule whose body comes later; for what contains itself."""
        name = f"r{len(self._bodies)}"
        self._bodies[name] = '""'
        return name

    def fill(self, name: str, body: str) -> None:
        """Give a reserved rule its body. Raises BadRequest when the grammar becomes too large."""
        self._bodies[name] = body
        self._size += len(body)
        if self._size > MOST_BYTES:
            raise BadRequest(
                f"making a grammar of the request's schemas: it has more than {MOST_BYTES:,} bytes",
                hint="send fewer tools or smaller schemas",
            )

    def text(self, root: str) -> str:
        """Return the grammar that begins with `root`, a rule's body."""
        return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._bodies.items())]) + "\n"


def literal(text: str) -> str:
    """Return what matches exactly this text."""
    return '"' + "".join(map(_escaped, text)) + '"'


def either(options: Iterable[str]) -> str:
    """Return what matches one of several."""
    known = list(dict.fromkeys(options))
    return known[0] if len(known) == 1 else "( " + " | ".join(known) + " )"


def char_class(ranges: Sequence[tuple[int, int]], *, negated: bool = False) -> str:
    """Return what matches one character of (or, negated, outside) these inclusive ranges of code points."""
    if negated:
        ranges = without(ranges)
    parts = [_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in ranges]
    return "[" + "".join(parts) + "]"


def without(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return all characters that are in none of these ranges; surrogates are no characters."""
    out: list[tuple[int, int]] = []
    at = 0
    for low, high in sorted([*ranges, (0xD800, 0xDFFF)]):
        if low > at:
            out.append((at, low - 1))
        at = max(at, high + 1)
    return [*out, (at, _LAST)] if at <= _LAST else out


def text_until(rules: Rules, end: str) -> str:
    """Return a rule for any text up to the first `end`, that included; its first character stands in it only once."""
    first = end[0]
    names = [rules.reserve() for _ in end]
    for index, char in enumerate(end):
        following = names[index + 1] if index + 1 < len(end) else ""
        onward = f"{literal(char)} {following}".strip()
        if index == 0:
            rules.fill(names[0], f"{char_class([(ord(first), ord(first))], negated=True)} {names[0]} | {onward}")
        else:
            others = char_class([(ord(first), ord(first)), (ord(char), ord(char))], negated=True)
            rules.fill(names[index], f"{onward} | {literal(first)} {names[1]} | {others} {names[0]}")
    return names[0]


def _code(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def _escaped(char: str) -> str:
    if char == "\n":
        return "\\n"
    if char in '"\\':
        return "\\" + char
    return char if char.isascii() and char.isprintable() else _code(ord(char))
