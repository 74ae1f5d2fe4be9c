"""One call, or a list of them, as it stands in a wrapper: where it ends, and what it says. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from akashic_daemon.toolcalls.syntax import Shape, Syntax
from akashic_daemon.toolcalls.tags import TextParameters, tagged_call

_NAME = r"[^\s\[\]{}<>\"',;|]{1,128}"
_NAME_ENDS_WITHIN = 192
"""Characters; a name that isn't over by then is none."""


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse)


@dataclass(frozen=True, slots=True)
class Call:
    """A call; `arguments` is JSON text, byte for byte as it was said (made of the tags where there are tags)."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Header:
    """The beginning of a call up to its arguments, which start at `end`."""

    name: str
    end: int


class Depth:
    """Finds where a JSON object or array ends, in pieces; knows strings and brackets, nothing else."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def end_of(self, text: str) -> int | None:
        """Return the index behind the closing bracket, None when it isn't there yet."""
        for index, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return index + 1
        return None


def header_of(text: str, syntax: Syntax) -> Header | None:
    """Return the beginning of a call that stands at the start of `text`, if it is all there and its name can be read."""
    found = _header_pattern(syntax).match(text)
    if found is None:
        return None
    try:
        name = found[1] if syntax.shape is Shape.NAMED else json.loads(found[1])
    except ValueError:  # an escape that JSON hasn't
        return None
    return Header(name, found.end())


@cache
def _header_pattern(syntax: Syntax) -> re.Pattern[str]:
    if syntax.shape is Shape.NAMED:
        return re.compile(rf"\s*({_NAME}){re.escape(syntax.after_name)}\s*(?=\{{)")
    start = r"\s*\[?\s*" if syntax.shape is Shape.LIST else r"\s*"
    text = r'("(?:[^"\\]|\\.)*")'
    own_id = rf'(?:"{syntax.id_key}"\s*:\s*"[^"\\]*"\s*,\s*)?' if syntax.id_key else ""
    return re.compile(
        rf'{start}\{{\s*{own_id}"{syntax.name_key}"\s*:\s*{text}\s*,\s*"{syntax.arguments_key}"\s*:\s*(?=\{{)'
    )


def ends_at(text: str, syntax: Syntax, *, is_last: bool) -> int | None:
    """Return where the calls at the start of `text` end; 0 when these are none, None when that isn't certain yet."""
    unknown = 0 if is_last else None
    if syntax.shape is Shape.TAGS:
        at = text.find(syntax.closing)
        return at if at >= 0 else unknown
    start = len(text) - len(text.lstrip())
    if syntax.shape is Shape.NAMED:
        named = re.match(rf"\s*{_NAME}{re.escape(syntax.after_name)}\s*", text)
        if named is None:
            return 0 if len(text) > _NAME_ENDS_WITHIN else unknown
        start = named.end()
    if start >= len(text):
        return unknown
    if text[start] != ("[" if syntax.shape is Shape.LIST else "{"):
        return 0
    end = Depth().end_of(text[start:])
    return unknown if end is None else start + end


def calls_in(text: str, syntax: Syntax, texts: TextParameters | None = None) -> list[Call]:
    """Return the calls that `text` is; none when it is anything else. texts: for TAGS, which values are text."""
    if syntax.shape is Shape.TAGS:
        tagged = tagged_call(text, texts)
        return [] if tagged is None else [Call(*tagged)]
    if syntax.shape is Shape.NAMED:
        header = header_of(text, syntax)
        if header is None or not is_object(text[header.end :]):
            return []
        return [Call(header.name, text[header.end :])]
    try:
        spans = _spans(text, syntax.shape is Shape.LIST)
    except (ValueError, RecursionError):
        return []
    calls = [_call(span, syntax) for span in spans]
    return [call for call in calls if call is not None] if all(calls) else []


def _call(span: Mapping[str, tuple[Any, str]], syntax: Syntax) -> Call | None:
    name = span.get(syntax.name_key, (None, ""))[0]
    value, text = next(
        (span[key] for key in (syntax.arguments_key, "arguments", "parameters") if key in span), ({}, "{}")
    )
    is_nested = isinstance(value, str) and is_object(value)  # JSON within JSON, as some models write it
    if not isinstance(name, str) or not name or not (is_nested or isinstance(value, dict)):
        return None
    return Call(name, value if isinstance(value, str) else text)


def _spans(text: str, is_list: bool) -> list[dict[str, tuple[Any, str]]]:
    """Return the members of an object (or of each object of a list) with the text of their values."""
    out: list[dict[str, tuple[Any, str]]] = []
    at = _blanks(text, 0)
    if is_list:
        at = _blanks(text, at + 1)
    while True:
        members, at = _members(text, at)
        out.append(members)
        at = _blanks(text, at)
        if is_list and text[at : at + 1] == ",":
            at = _blanks(text, at + 1)
            continue
        if is_list and text[at : at + 1] != "]":
            raise ValueError("the list isn't closed")
        if text[at + is_list :].strip():
            raise ValueError("something follows")
        return out


def _members(text: str, at: int) -> tuple[dict[str, tuple[Any, str]], int]:
    out: dict[str, tuple[Any, str]] = {}
    if text[at : at + 1] != "{":
        raise ValueError("no object")
    at = _blanks(text, at + 1)
    while True:
        key, at = _decoder.raw_decode(text, at)
        at = _blanks(text, at)
        if not isinstance(key, str) or key in out or text[at : at + 1] != ":":
            raise ValueError("no member")
        at = _blanks(text, at + 1)
        value, end = _decoder.raw_decode(text, at)
        out[key] = value, text[at:end]
        at = _blanks(text, end)
        if text[at : at + 1] == "}":
            return out, at + 1
        if text[at : at + 1] != ",":
            raise ValueError("no comma")
        at = _blanks(text, at + 1)


def _blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def is_object(text: str) -> bool:
    """Tell if a text is a JSON object."""
    try:
        value, end = _decoder.raw_decode(text, _blanks(text, 0))
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not text[end:].strip()
