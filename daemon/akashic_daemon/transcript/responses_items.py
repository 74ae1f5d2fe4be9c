"""Items of OpenAI's Responses API -> trajectory messages.

A model's turn comes as several items: its reasoning, its text, its calls. They are one message, as they were sampled.
What only hosted services can make sense of is left out and named; what a text model can't be given is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.toolcalls.custom import arguments_of
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.transcript.content import storable

_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_SEALED = "akashic1:"
"""What marks opaque text as ours: clients that send no thoughts in the open send this back."""
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})


def messages_from_items(
    instructions: str | None, items: str | Sequence[Any], *, model: str
) -> tuple[list[Message], list[str]]:
    """Return a request's messages, and names of the items that are left out.

    Raises BadRequest naming the field, Unsupported naming the model.
    """
    out = [Message(Role.SYSTEM, instructions)] if instructions else []
    if isinstance(items, str):
        return [storable(m) for m in (*out, Message(Role.USER, items))], []
    reader = _Reader(model, out)
    for index, item in enumerate(items):
        reader.item(item, f"input[{index}]")
    reader.end_turn()
    return [storable(message) for message in out], reader.ignored


class _Reader:
    """Joins the items of a turn: `_turn` is the assistant's message that may still go on."""

    def __init__(self, model: str, out: list[Message]) -> None:
        self._model = model
        self._out = out
        self._turn: Message | None = None
        self.ignored: list[str] = []

    def item(self, item: Any, where: str) -> None:
        if not isinstance(item, dict):
            raise _wrong(item, "an object", where)
        kind = item.get("type") or ("message" if "role" in item else None)
        if not isinstance(kind, str):
            raise BadRequest(
                f"reading {where}.type: it is missing or no text", hint="name the item's type", param=where
            )
        if kind == "message":
            self._message(item, where)
        elif kind == "function_call":
            self._call(item, _text(item, "arguments", where), where)
        elif kind == "custom_tool_call":
            self._call(item, arguments_of(_text(item, "input", where)), where)
        elif kind in _OUTPUTS:
            self._result(item, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind == "item_reference":
            raise Unsupported(
                f"reading {where}: items aren't kept by their ids here, so a reference stands for nothing",
                hint="send the item itself, or what came before by previous_response_id",
            )
        else:
            self.ignored.append(f"{where} ({kind[:40]})")

    def end_turn(self) -> None:
        if self._turn is not None:
            self._out.append(self._turn)
        self._turn = None

    def _message(self, item: dict[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            said = "is missing" if role is None else f"is {role!r}"[:80]
            raise BadRequest(f"reading {where}.role: it {said}", hint=f"use one of {', '.join(_ROLES)}", param=where)
        text = self._content(item.get("content"), f"{where}.content")
        if role != "assistant":
            self.end_turn()
            self._out.append(Message(_ROLES[role], text))
            return
        turn = self._turn
        if turn is None or turn.content or turn.tool_calls:
            self.end_turn()
            turn = Message(Role.ASSISTANT)
        self._turn = replace(turn, content=text)

    def _call(self, item: dict[str, Any], arguments: str, where: str) -> None:
        call = ToolCall(_text(item, "call_id", where), _text(item, "name", where), arguments)
        turn = self._turn or Message(Role.ASSISTANT)
        self._turn = replace(turn, tool_calls=(*turn.tool_calls, call))

    def _result(self, item: dict[str, Any], where: str) -> None:
        self.end_turn()
        output = item.get("output")
        text = output if isinstance(output, str) else self._content(output, f"{where}.output")
        self._out.append(Message(Role.TOOL, text, tool_call_id=_text(item, "call_id", where)))

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        parts = [*_list(item, "content", where), *_list(item, "summary", where)]
        texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if not texts and (thought := _unsealed(item.get("encrypted_content"))) is not None:
            texts = [thought]
        self.end_turn()
        if texts:
            self._turn = Message(Role.ASSISTANT, thinking="\n".join(texts))

    def _content(self, content: Any, where: str) -> str:
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise _wrong(content, "text or a list of parts", where)
        return "\n".join([self._part(part, f"{where}[{i}]") for i, part in enumerate(content)])

    def _part(self, part: Any, where: str) -> str:
        if not isinstance(part, dict):
            raise _wrong(part, "an object", where)
        kind = part.get("type")
        if isinstance(kind, str) and kind in _TEXT_PARTS:
            return _text(part, _TEXT_PARTS[kind], where)
        raise Unsupported(
            f"reading {where}: a part of type {str(kind)[:80]!r} can't be given to the model {self._model}, "
            "which reads text only",
            hint="send text parts",
        )


def sealed_thought(thought: str) -> str:
    """Return a thought as the opaque text of an item."""
    return _SEALED + base64.b64encode(thought.encode("utf-8", "surrogatepass")).decode()


def _unsealed(text: Any) -> str | None:
    """Return the thought in opaque text; None for what isn't ours."""
    if not isinstance(text, str) or not text.startswith(_SEALED):
        return None
    try:
        return base64.b64decode(text.removeprefix(_SEALED), validate=True).decode("utf-8", "replace")
    except ValueError:
        return None


def _list(item: dict[str, Any], key: str, where: str) -> list[Any]:
    value = item.get(key)
    if value is not None and not isinstance(value, list):
        raise _wrong(value, "a list", f"{where}.{key}")
    return value or []


def _text(item: dict[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise _wrong(value, "text", f"{where}.{key}")
    return value


def _wrong(value: Any, expected: str, where: str) -> BadRequest:
    found = "nothing" if value is None else type(value).__name__
    return BadRequest(f"reading {where}: expected {expected}, found {found}", param=where)
