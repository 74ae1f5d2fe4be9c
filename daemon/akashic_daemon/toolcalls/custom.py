"""OpenAI's custom tools, whose input is free text: shown to a model as functions with one text argument. Pure.

The model writes `{"input": "…"}` in its own wrapper; clients are given the text within, as it comes. Arguments of any other
form are handed over as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from akashic_daemon.errors import BadRequest

INPUT = "input"
_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_MAY_BEGIN = re.compile(r'\s*(\{\s*("(i(n(p(u(t("(\s*(:\s*)?)?)?)?)?)?)?)?)?)?')
_ESCAPE_CHARS = 6
"""Of `\\uXXXX`."""
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_HIGH, _LOW = range(0xD800, 0xDC00), range(0xDC00, 0xE000)


def as_function(tool: Mapping[str, Any], where: str) -> tuple[dict[str, Any], str | None]:
    """Return a custom tool as a function, and what of its format the model is told but not held to.

    Raises BadRequest naming the field.
    """
    name, description = tool.get("name"), tool.get("description")
    if not isinstance(name, str) or not name:
        raise BadRequest(f"field '{where}.name' is missing or no text", hint="name the tool", param=f"{where}.name")
    schema: dict[str, Any] = {"type": "string", "description": "The tool's whole input, as plain text."}
    form, said, free = tool.get("format"), [description] if isinstance(description, str) else [], None
    if form is not None and not isinstance(form, Mapping):
        raise BadRequest(f"field '{where}.format' is no object", param=f"{where}.format")
    if form is not None and form.get("type") == "grammar":
        syntax, definition = form.get("syntax"), form.get("definition")
        if not isinstance(syntax, str) or not isinstance(definition, str):
            raise BadRequest(
                f"field '{where}.format' is a grammar without syntax or definition",
                hint='send {"type": "grammar", "syntax": "regex" or "lark", "definition": "..."}',
                param=f"{where}.format",
            )
        said.append(f"The input follows this {syntax} grammar:\n{definition}")
        if syntax == "regex":
            schema["pattern"] = f"^(?:{definition})$"
        else:
            free = f"{where}.format ({syntax[:40]} grammar)"
    function = {
        "name": name,
        "description": "\n\n".join(said),
        "parameters": {
            "type": "object",
            "properties": {INPUT: schema},
            "required": [INPUT],
            "additionalProperties": False,
        },
    }
    return {"type": "function", "function": function}, free


class InputReader:
    """Reads the arguments of one call as they come; `push` and `finish` return more of the input."""

    def __init__(self) -> None:
        self._held = ""
        self._is_inside: bool | None = None
        """Whether the text has begun; None as long as that isn't certain, False when the arguments are of another form."""
        self._is_over = False

    def push(self, text: str) -> str:
        """Add arguments and return what is certain of the input."""
        self._held += text
        if self._is_inside is None:
            self._begin()
        if self._is_inside is None or self._is_over:
            return ""
        if not self._is_inside:
            out, self._held = self._held, ""
            return out
        return self._text()

    def finish(self) -> str:
        """Return what was held back; the arguments have ended, though perhaps not complete."""
        if self._is_inside:
            return ""
        out, self._held = self._held, ""
        return out

    def _begin(self) -> None:
        found = _BEGIN.match(self._held)
        if found is not None:
            self._held, self._is_inside = self._held[found.end() :], True
        elif _MAY_BEGIN.fullmatch(self._held) is None:
            self._is_inside = False

    def _text(self) -> str:
        """Return the characters of a JSON string that are complete."""
        held, out, at = self._held, [], 0
        while at < len(held) and not self._is_over:
            if held[at] == '"':
                self._is_over = True
            elif held[at] != "\\":
                out.append(held[at])
                at += 1
            else:
                found = _escaped(held, at)
                if found is None:
                    break
                out.append(found[0])
                at = found[1]
        self._held = held[at:]
        return "".join(out)


def _escaped(text: str, at: int) -> tuple[str, int] | None:
    """Return the character that an escape stands for, and where it ends; None for one that isn't complete."""
    kind = text[at + 1 : at + 2]
    if not kind:
        return None
    if kind != "u":
        return _PLAIN.get(kind, kind), at + 2
    if len(text) < at + _ESCAPE_CHARS:
        return None
    code, end = _code(text, at), at + _ESCAPE_CHARS
    if code not in _HIGH:
        return "\ufffd" if code is None or code in _LOW else chr(code), end
    if len(text) < end + _ESCAPE_CHARS and text[end : end + 2] == "\\u"[: len(text) - end]:
        return None
    low = _code(text, end) if text[end : end + 2] == "\\u" else None
    if low not in _LOW:
        return "\ufffd", end
    assert low is not None
    assert code is not None
    return chr(0x10000 + ((code - _HIGH.start) << 10) + low - _LOW.start), end + _ESCAPE_CHARS


def _code(text: str, at: int) -> int | None:
    digits = text[at + 2 : at + _ESCAPE_CHARS]
    return int(digits, 16) if re.fullmatch("[0-9a-fA-F]{4}", digits) else None


def arguments_of(text: str) -> str:
    """Return the arguments that hold an input."""
    return json.dumps({INPUT: text}, ensure_ascii=False, separators=(",", ":"))
