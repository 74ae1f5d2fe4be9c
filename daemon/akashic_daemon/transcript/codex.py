"""Codex CLI rollouts: `{timestamp, type, payload}` a line.

Every text comes twice, as `event_msg` and as `response_item`; only the latter is what the model saw. Reasoning, text
and calls of one response are items in a row, ended by a result. A `compacted` line holds the summary that replaced
the history. Older rollouts have the items without the envelope.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from akashic_daemon.errors import TranscriptError
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.transcript.content import (
    arguments_text,
    as_dict,
    as_key,
    as_list,
    as_text,
    compact_json,
    content_text,
    parse_time,
    part_text,
)
from akashic_daemon.transcript.item import MAIN, Imported, Item, Record
from akashic_daemon.transcript.turn import Conversation, Piece

ENVELOPES = frozenset({"session_meta", "turn_context", "event_msg", "response_item", "compacted"})
ITEMS = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "web_search_call",
    }
)
NOISE_ITEMS = frozenset({"ghost_snapshot", "compaction", "compaction_summary", "compaction_trigger", "other"})
"""Items whose content is encrypted or is the client's own book-keeping."""

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM, "developer": Role.SYSTEM}


class CodexReader:
    """Reads one rollout."""

    def __init__(self) -> None:
        self._conversation = Conversation(MAIN, is_main=True)
        self._response = 0
        self._has_output = False

    def feed(self, record: Record) -> Iterator[Item]:
        """Take one line."""
        line = record.value
        if not isinstance(line, dict):
            raise TranscriptError(f"expected an object, found {type(line).__name__}")
        kind = line.get("type")
        if kind in ("session_meta", "turn_context", "event_msg") or _is_old_header(line):
            return
        time_s = parse_time(line.get("timestamp"))
        if kind == "compacted":
            if text := as_text(as_dict(line.get("payload")).get("message")):
                message = Message(Role.USER, text, event_time_s=time_s, compaction=True, source=_source(record))
                yield from self._conversation.other(message, record.line)
            return
        item = as_dict(line.get("payload")) if kind == "response_item" else line
        yield from self._item(item, record, time_s)

    def finish(self) -> Iterator[Imported]:
        """End the open turn."""
        yield from self._conversation.finish()

    def _item(self, item: dict[str, Any], record: Record, time_s: float | None) -> Iterator[Item]:
        kind = item.get("type")
        if kind == "message":
            yield from self._message(item, record, time_s)
        elif kind == "reasoning":
            thoughts = [part_text(p) for p in as_list(item.get("summary")) + as_list(item.get("content"))]
            yield from self._piece(record, time_s, thoughts=thoughts)
        elif isinstance(kind, str) and kind.endswith("_call"):
            yield from self._piece(record, time_s, calls=[_call(kind, item, record)])
        elif isinstance(kind, str) and kind.endswith("_call_output"):
            yield from self._conversation.finish()
            yield from self._conversation.result(_result(item, record, time_s), record.line)
        elif not isinstance(kind, str) or kind not in NOISE_ITEMS:
            raise TranscriptError(f"unknown response item {kind!r}"[:200])

    def _message(self, item: dict[str, Any], record: Record, time_s: float | None) -> Iterator[Item]:
        role = _ROLES.get(as_text(item.get("role")))
        if role is None:
            raise TranscriptError(f"a message with the unknown role {item.get('role')!r}"[:200])
        text = content_text(item.get("content"))
        if role is Role.ASSISTANT:
            yield from self._piece(record, time_s, texts=[text])
        else:
            message = Message(role, text, event_time_s=time_s, source=_source(record))
            yield from self._conversation.other(message, record.line)

    def _piece(
        self,
        record: Record,
        time_s: float | None,
        *,
        thoughts: list[str] | None = None,
        texts: list[str] | None = None,
        calls: list[ToolCall] | None = None,
    ) -> Iterator[Item]:
        """Add to the response; reasoning or text after text or a call begins the next one."""
        if self._has_output and not calls:
            self._response += 1
            self._has_output = False
        self._has_output = self._has_output or bool(texts or calls)
        piece = Piece(str(self._response), record.line, _source(record), texts or [], thoughts or [], calls or [])
        piece.time_s = time_s
        yield from self._conversation.assistant(piece)


def _source(record: Record) -> str:
    return f"codex:{record.place}"


def _is_old_header(line: dict[str, Any]) -> bool:
    return "type" not in line and ("record_type" in line or {"id", "timestamp"} <= line.keys())


def _call(kind: str, item: dict[str, Any], record: Record) -> ToolCall:
    name = as_text(item.get("name")) or kind.removesuffix("_call")
    call_id = as_key(item.get("call_id")) or as_key(item.get("id")) or f"{name}-{record.place}"
    if kind == "custom_tool_call":
        # The input is free text, and arguments must be JSON.
        return ToolCall(call_id, name, compact_json({"input": item.get("input")}))
    return ToolCall(call_id, name, arguments_text(item.get("arguments", item.get("action"))))


def _result(item: dict[str, Any], record: Record, time_s: float | None) -> Message:
    output = item.get("output")
    failed = _failed(output)
    if isinstance(output, dict) and "content" in output:
        output = output["content"]
    return Message(
        Role.TOOL,
        content_text(output),
        tool_call_id=as_key(item.get("call_id")),
        is_error=failed,
        event_time_s=time_s,
        source=_source(record),
    )


def _failed(output: Any) -> bool:
    """Tell whether a result reports failure: `success: false`, or an exit code in the JSON that its text holds."""
    if isinstance(output, str) and output.startswith("{"):
        try:
            output = json.loads(output)
        except (ValueError, RecursionError):
            return False
    body = as_dict(output)
    return body.get("success") is False or as_dict(body.get("metadata")).get("exit_code", 0) not in (0, None)
