"""Regular expressions of JSON schemas as grammars, as far as both can say the same."""

from __future__ import annotations


class UnknownRegex(ValueError):
    """Something that has no equal in a grammar; says what."""


def regex_body(pattern: str) -> str:
    """Return what matches the inside of a JSON string that the pattern finds. Raises UnknownRegex."""
    raise UnknownRegex("not supported")
