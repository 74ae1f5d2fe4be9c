"""Anthropic's messages -> trajectory messages, for the HTTP API.

Refuses what a text model can't be given, naming the place, such as `messages[3].content[1]`, and the model. Nothing is
reordered: a tool result stands where its block stands, a system message in mid-conversation stays there. Signatures and
cache marks don't take part: clients move them from turn to turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.transcript.content import compact_json, storable

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_THOUGHT_AWAY = frozenset({"redacted_thinking"})


def messages_from_anthropic(system: Any, messages: Sequence[Any], *, model: str) -> list[Message]:
    """Read a request's `system` and `messages`. Raises BadRequest naming the field, Unsupported naming the model."""
    reader = _Reader(model)
    out = reader.system(system)
    for index, raw in enumerate(messages):
        out += reader.message(raw, f"messages[{index}]")
    return [storable(message) for message in out]


class _Reader:
    def __init__(self, model: str) -> None:
        self._model = model

    def system(self, system: Any) -> list[Message]:
        text = "" if system is None else self._text(system, "system")
        return [Message(Role.SYSTEM, text)] if text else []

    def message(self, raw: Any, where: str) -> list[Message]:
        _expect(raw, dict, where)
        role = raw.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            said = "is missing" if role is None else f"is {role!r}"[:80]
            raise BadRequest(f"reading {where}.role: it {said}", hint=f"use one of {', '.join(_ROLES)}")
        content = raw.get("content")
        if role == "system":
            return [Message(Role.SYSTEM, self._text(content, f"{where}.content"))]
        if isinstance(content, str):
            return [Message(_ROLES[role], content)]
        if not isinstance(content, list):
            raise _wrong(content, "text or a list of blocks", f"{where}.content")
        return (self._user if role == "user" else self._assistant)(content, f"{where}.content")

    def _user(self, blocks: list[Any], where: str) -> list[Message]:
        out: list[Message] = []
        texts: list[str] = []
        for index, block in enumerate(blocks):
            place = f"{where}[{index}]"
            if _kind(block, place) != "tool_result":
                texts.append(self._block_text(block, place))
                continue
            if texts:
                out.append(Message(Role.USER, "\n".join(texts)))
                texts = []
            out.append(self._result(block, place))
        if texts or not out:
            out.append(Message(Role.USER, "\n".join(texts)))
        return out

    def _result(self, block: dict[str, Any], where: str) -> Message:
        content = block.get("content")
        return Message(
            Role.TOOL,
            "" if content is None else self._text(content, f"{where}.content"),
            tool_call_id=_text(block, "tool_use_id", where),
            is_error=block.get("is_error") is True,
        )

    def _assistant(self, blocks: list[Any], where: str) -> list[Message]:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        for index, block in enumerate(blocks):
            place = f"{where}[{index}]"
            kind = _kind(block, place)
            if kind == "thinking":
                thoughts.append(_text(block, "thinking", place))
            elif kind == "tool_use":
                calls.append(_call(block, place))
            elif kind not in _THOUGHT_AWAY:
                texts.append(self._block_text(block, place))
        return [
            Message(
                Role.ASSISTANT, "\n".join(texts), thinking="\n".join(thoughts) or None, tool_calls=tuple(calls)
            )
        ]  # fmt: skip

    def _text(self, content: Any, where: str) -> str:
        """Return the text of a place that holds text or blocks of it."""
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise _wrong(content, "text or a list of blocks", where)
        return "\n".join([self._block_text(block, f"{where}[{i}]") for i, block in enumerate(content)])

    def _block_text(self, block: Any, where: str) -> str:
        kind = _kind(block, where)
        if kind == "text":
            return _text(block, "text", where)
        if kind == "search_result":
            head = [block[key] for key in ("title", "source") if isinstance(block.get(key), str)]
            return "\n".join([*head, self._text(block.get("content"), f"{where}.content")])
        if kind == "document":
            return self._document(block, where)
        if kind == "tool_reference":
            return f"[tool {_text(block, 'tool_name', where)}]"
        raise Unsupported(
            f"reading {where}: a block of type {kind} can't be given to the model {self._model}, which reads text only",
            hint="send text, tool_use and tool_result blocks",
        )

    def _document(self, block: dict[str, Any], where: str) -> str:
        source = block.get("source")
        _expect(source, dict, f"{where}.source")
        assert isinstance(source, dict)
        kind = source.get("type")
        if kind == "text":
            text = _text(source, "data", f"{where}.source")
        elif kind == "content":
            text = self._text(source.get("content"), f"{where}.source.content")
        else:
            raise Unsupported(
                f"reading {where}.source: a document of type {str(kind)[:80]!r} can't be given to the model "
                f"{self._model}, which reads text only",
                hint="send the document's text",
            )
        return "\n".join([block[key] for key in ("title", "context") if isinstance(block.get(key), str)] + [text])


def _call(block: dict[str, Any], where: str) -> ToolCall:
    given = block.get("input", {})
    _expect(given, dict, f"{where}.input")
    return ToolCall(_text(block, "id", where), _text(block, "name", where), compact_json(given))


def _kind(block: Any, where: str) -> str:
    _expect(block, dict, where)
    kind = block.get("type")
    if not isinstance(kind, str):
        raise BadRequest(f"reading {where}.type: it is missing or no text", hint="name the block's type, such as text")
    return kind[:80]


def _text(block: dict[str, Any], key: str, where: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise _wrong(value, "text", f"{where}.{key}")
    return value


def _expect(value: Any, kind: type, where: str) -> None:
    if not isinstance(value, kind):
        raise _wrong(value, "an object", where)


def _wrong(value: Any, expected: str, where: str) -> BadRequest:
    found = "nothing" if value is None else type(value).__name__
    return BadRequest(f"reading {where}: expected {expected}, found {found}", param=where)
