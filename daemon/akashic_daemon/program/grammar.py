"""The parser behind scripts, policies and selectors, and its errors in the words of the language."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from akashic_daemon.errors import ScriptError

if TYPE_CHECKING:
    from lark import Lark, Tree, UnexpectedInput

_MOST_EXPECTED = 12
LONGEST_SOURCE_CHARS = 1 << 20
"""A longer script is refused: it holds a message that should be a file of its own."""

_WORDS = {
    "_NL": "the end of the line",
    "$END": "the end of the file",
    "STRING": 'a text in "quotes"',
    "HEREDOC": "<<WORD",
    "INT": "a number",
    "NAME": "a name",
    "LABEL": "a name",
    "ROLE": "system, user, assistant, tool",
    "COMPARE": "a comparison (<, <=, ==, !=, >=, >)",
}


@cache
def _parser() -> Lark:
    from lark import Lark

    text = resources.files("akashic_daemon.program").joinpath("ops.lark").read_text(encoding="utf-8")
    return Lark(
        text,
        parser="lalr",
        start=["script", "policy_file", "selector_only"],
        propagate_positions=True,
        maybe_placeholders=True,
    )


def parse_tree(source: str, start: str) -> Tree[Any]:
    """Return the syntax tree. Raises ScriptError."""
    from lark import UnexpectedInput

    if len(source) > LONGEST_SOURCE_CHARS:
        raise ScriptError(
            f"a script of {len(source)} characters; at most {LONGEST_SOURCE_CHARS} are read",
            hint='put long texts in files and write: append user file "…"',
        )
    source = source.removeprefix("\ufeff").replace("\r\n", "\n")
    source += "" if source.endswith("\n") else "\n"
    try:
        return _parser().parse(source, start=start)
    except UnexpectedInput as error:
        raise _explained(error, source) from error


def error_at(place: Any, reason: str, hint: str | None) -> ScriptError:
    """Return the error for a token or a node of the tree."""
    spot = place.meta if hasattr(place, "meta") else place
    return ScriptError(
        f"line {spot.line}, column {spot.column}: {reason}", hint=hint, line=spot.line, column=spot.column
    )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a question that names the nearest known name, if one is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else None


def _explained(error: UnexpectedInput, source: str) -> ScriptError:
    lines = source.split("\n")
    line, column = max(1, error.line), max(1, error.column)
    if line > len(lines) or getattr(getattr(error, "token", None), "type", "") == "$END":
        line = max(1, len(lines) - 1)
        column = len(lines[line - 1]) + 1
    rest = lines[line - 1][column - 1 :]
    opened = re.match(r"<<([A-Za-z_]\w*)", rest)
    if opened:
        return ScriptError(
            f"line {line}, column {column}: no line says {opened[1]}, so the text after <<{opened[1]} doesn't end",
            hint=f"end it with a line that is just {opened[1]}",
            line=line,
            column=column,
        )
    found = re.match(r"[\w.-]+|\S", rest)
    shown = f"{found[0]!r}" if found else "the end of the line"
    words = _expected(error)
    listed = ", ".join(words[:_MOST_EXPECTED]) + (", …" if len(words) > _MOST_EXPECTED else "")
    hint = (
        nearest(found[0], re.findall(r"[a-z]{3,}", " ".join(w for w in words if w[0] == "'" or "," in w)))
        if found
        else None
    )
    return ScriptError(
        f"line {line}, column {column}: found {shown}, expected {listed or 'nothing more'}",
        hint=hint,
        line=line,
        column=column,
    )


def _expected(error: UnexpectedInput) -> list[str]:
    wanted = getattr(error, "accepts", None) or getattr(error, "expected", None) or getattr(error, "allowed", None)
    literals = {t.name: t.pattern.value for t in _parser().terminals if t.pattern.type == "str"}
    words = {_WORDS.get(name) or repr(literals.get(name, name)) for name in wanted or ()}
    return sorted(words, key=lambda word: (not word.startswith("'"), word))
