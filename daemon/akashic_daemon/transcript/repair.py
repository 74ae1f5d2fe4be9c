"""Reading the front of JSON that is cut off or breaks in the middle.

Used to recognise a long document by its head, and to save the whole elements of a damaged one.
"""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(
    r'[ \t\r\n]*+(?:(?P<mark>[{}\[\],:])|(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+")'
    r"|(?P<atom>(?:-?[0-9][0-9.eE+-]*|true|false|null|NaN|-?Infinity)(?=[ \t\r\n,}\]])))",
    re.S,
)
_CLOSERS = {"{": "}", "[": "]"}
_MAX_DEPTH = 500


def readable_front(text: str, *, whole_elements: bool) -> Any | None:
    """Return the JSON value that `text` begins with, closed where it breaks; None if nothing can be read.

    whole_elements: end after the last complete object of a list, not in the middle of one.
    """
    cut = _last_cut(text, whole_elements)
    if cut is None:
        return None
    end, closers = cut
    try:
        return json.loads(text[:end] + closers)
    except (ValueError, RecursionError):
        return None


def _last_cut(text: str, whole_elements: bool) -> tuple[int, str] | None:
    """Find the last place after a complete value, and the brackets that are open there."""
    stack: list[str] = []
    after_colon = False
    position = 0
    cut: tuple[int, list[str]] | None = None
    while token := _TOKEN.match(text, position):
        position = token.end()
        mark = token["mark"]
        if mark in ("{", "["):
            stack.append(mark)
            after_colon = False
            if len(stack) > _MAX_DEPTH:
                break
            continue
        if mark in ("}", "]"):
            if not stack or _CLOSERS[stack.pop()] != mark:
                break
            closes_element = mark == "}" and bool(stack) and stack[-1] == "["
            if closes_element or not stack or not whole_elements:
                cut = (position, stack.copy())
            if not stack:
                break
        elif mark is None:
            if not stack:
                break
            if not whole_elements and (stack[-1] == "[" or after_colon):
                cut = (position, stack.copy())
        after_colon = mark == ":"
    if cut is None:
        return None
    return cut[0], "".join(_CLOSERS[opener] for opener in reversed(cut[1]))
