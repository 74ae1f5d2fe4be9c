"""OpenAI chat messages -> trajectory messages, for the HTTP API and for transcripts.

Strict reading refuses what the API can't honour and names the place, such as `messages[3].content[1].type`. Lenient
reading is for transcripts: it takes what it can, and turns parts that aren't text into markers. Both keep the
arguments of calls byte for byte and replace lone surrogates.
"""

from __future__ import annotations

from typing import Any

from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.transcript.content import (
    arguments_text,
    as_dict,
    as_key,
    as_list,
    as_text,
    compact_json,
    content_text,
    joined,
    parse_time,
    storable,
)

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_OTHER_PARTS = frozenset(
    {"image", "image_url", "input_image", "audio", "input_audio", "video", "video_url", "file", "input_file"}
)
_THINKING_KEYS = ("reasoning_content", "reasoning", "thinking")


def messages_from_openai(messages: list[dict[str, Any]], *, lenient: bool = False) -> list[Message]:
    """Read a request's `messages`.

    Raises BadRequest naming the index and field, and when strict Unsupported for a part or call that isn't text.
    Lenient reading still raises for an entry that is no message at all: nothing is dropped silently.
    """
    if not isinstance(messages, list):
        raise BadRequest(f"reading `messages`: expected a list, found {type(messages).__name__}")
    return [message_from_openai(raw, f"messages[{i}]", lenient=lenient) for i, raw in enumerate(messages)]


def message_from_openai(raw: Any, where: str, *, lenient: bool = False) -> Message:
    """Read one message that stands at `where`; raises as `messages_from_openai` does."""
    if not isinstance(raw, dict):
        raise BadRequest(f"reading {where}: expected an object, found {type(raw).__name__}")
    if lenient:
        return storable(_lenient(raw, where))
    role = _role(raw, where)
    calls = _strict_calls(raw, role, where)
    return storable(
        Message(
            role,
            _strict_content(raw, role, where),
            thinking=_strict_thinking(raw, where),
            tool_calls=calls,
            tool_call_id=_optional_text(raw, "tool_call_id", where),
            name=_optional_text(raw, "name", where),
        )
    )


def _role(raw: dict[str, Any], where: str, *, more: dict[str, Role] | None = None) -> Role:
    name = raw.get("role")
    known = {**_ROLES, **(more or {})}
    if not isinstance(name, str) or name not in known:
        said = "is missing" if name is None else f"is {name!r}"[:80]
        raise BadRequest(f"reading {where}.role: it {said}", hint=f"use one of {', '.join(_ROLES)}")
    return known[name]


def _optional_text(raw: dict[str, Any], key: str, where: str) -> str | None:
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"reading {where}.{key}: expected text, found {type(value).__name__}")
    return value


def _required_text(raw: dict[str, Any], key: str, where: str) -> str:
    value = _optional_text(raw, key, where)
    if value is None:
        raise BadRequest(f"reading {where}.{key}: it is missing")
    return value


def _strict_thinking(raw: dict[str, Any], where: str) -> str | None:
    for key in _THINKING_KEYS:
        if text := _optional_text(raw, key, where):
            return text
    return None


def _strict_content(raw: dict[str, Any], role: Role, where: str) -> str:
    content = raw.get("content")
    if isinstance(content, str):
        return content
    if content is None and role is Role.ASSISTANT:
        return _optional_text(raw, "refusal", where) or ""
    if not isinstance(content, list):
        found = "nothing" if content is None else type(content).__name__
        raise BadRequest(f"reading {where}.content: expected text or a list of parts, found {found}")
    return "\n".join([_strict_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)])


def _strict_part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise BadRequest(f"reading {where}: expected an object, found {type(part).__name__}")
    kind = part.get("type")
    if isinstance(kind, str) and kind in _TEXT_PARTS:
        return _required_text(part, _TEXT_PARTS[kind], where)
    if isinstance(kind, str) and kind in _OTHER_PARTS:
        raise Unsupported(
            f"reading {where}: a part of type {kind} can't be given to a text model", hint="send text parts only"
        )
    raise BadRequest(f"reading {where}.type: unknown part type {kind!r}"[:200], hint="send text parts only")


def _strict_calls(raw: dict[str, Any], role: Role, where: str) -> tuple[ToolCall, ...]:
    calls = raw.get("tool_calls")
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise BadRequest(f"reading {where}.tool_calls: expected a list, found {type(calls).__name__}")
    if calls and role is not Role.ASSISTANT:
        raise BadRequest(f"reading {where}.tool_calls: only an assistant message can make calls, this is {role.value}")
    return tuple(_strict_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls))


def _strict_call(call: Any, where: str) -> ToolCall:
    if not isinstance(call, dict):
        raise BadRequest(f"reading {where}: expected an object, found {type(call).__name__}")
    kind = call.get("type", "function")
    if kind != "function":
        raise Unsupported(f"reading {where}.type: calls of type {kind!r} can't be given to the model"[:200])
    function = call.get("function")
    if not isinstance(function, dict):
        raise BadRequest(f"reading {where}.function: expected an object, found {type(function).__name__}")
    inner = f"{where}.function"
    return ToolCall(
        _required_text(call, "id", where),
        _required_text(function, "name", inner),
        _arguments(function, inner),
    )


def _arguments(function: dict[str, Any], where: str) -> str:
    """Return a call's arguments. Some clients keep them as the object that they made of the text."""
    given = function.get("arguments")
    return compact_json(given) if isinstance(given, dict) else _required_text(function, "arguments", where)


def _lenient(raw: dict[str, Any], where: str) -> Message:
    role = _role(raw, where, more={"function": Role.TOOL, "human": Role.USER, "ai": Role.ASSISTANT})
    thinking = [text for key in _THINKING_KEYS if (text := as_text(raw.get(key)))][:1]
    content = raw.get("content")
    if isinstance(content, list):
        thinking += [as_text(as_dict(p).get("thinking")) for p in content if as_dict(p).get("type") == "thinking"]
        content = [p for p in content if as_dict(p).get("type") not in ("thinking", "redacted_thinking")]
    time = raw.get("timestamp", as_dict(raw.get("extra")).get("timestamp"))
    return Message(
        role,
        content_text(content),
        thinking=joined([t for t in thinking if t]) or None,
        tool_calls=_lenient_calls(raw),
        # tau2 names a result by the call's `id`, and says `error`.
        tool_call_id=as_key(raw.get("tool_call_id")) or (as_key(raw.get("id")) if role is Role.TOOL else None),
        name=as_text(raw.get("name")) or None,
        is_error=raw.get("is_error") is True or (role is Role.TOOL and raw.get("error") is True),
        event_time_s=parse_time(time),
    )


def _lenient_calls(raw: dict[str, Any]) -> tuple[ToolCall, ...]:
    calls = [as_dict(call) for call in as_list(raw.get("tool_calls"))]
    if isinstance(raw.get("function_call"), dict):
        calls.append({"id": "", "function": raw["function_call"]})
    out = []
    for call in calls:
        body = next((as_dict(call[key]) for key in ("function", "custom") if key in call), call)
        arguments = body.get("arguments", body.get("input"))
        text = arguments_text({"input": arguments} if "custom" in call else arguments)
        out.append(ToolCall(as_key(call.get("id")) or "", as_text(body.get("name")), text))
    return tuple(out)
