"""OpenHands events from before version 1.0: `{id, source, action, args}` and `{id, source, observation, content}`."""

from __future__ import annotations

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
)
from akashic_daemon.transcript.item import Imported, Record
from akashic_daemon.transcript.turn import Conversation, Piece

V0_SOURCES = ("user", "agent", "environment")
_NOISE = frozenset(
    {"agent_state_changed", "change_agent_state", "null", "recall", "recall_failure", "condensation_request", "success"}
)
_THOUGHT_KEYS = frozenset({"thought", "reasoning_content"})


def read_v0_event(conversation: Conversation, record: Record) -> Iterator[Imported]:
    """Read one event. Raises TranscriptError if it is neither an action nor an observation."""
    event: dict[str, Any] = record.value
    source = f"openhands:{as_key(event.get('id')) or record.place}"
    time_s = parse_time(event.get("timestamp"))
    action, observation = event.get("action"), event.get("observation")
    if not isinstance(action, str) and not isinstance(observation, str):
        raise TranscriptError("an event with neither `action` nor `observation`")
    if action in _NOISE or observation in _NOISE:
        return
    if isinstance(observation, str):
        yield from conversation.result(_result(event, observation, source, time_s), record.line)
        return
    args = as_dict(event.get("args"))
    if action == "message" and event.get("source") == "agent":
        piece = Piece(None, record.line, source, texts=[as_text(args.get("content"))], time_s=time_s)
        yield from conversation.assistant(piece)
    elif action in ("message", "system"):
        role = Role.USER if action == "message" else Role.SYSTEM
        message = Message(role, content_text(args.get("content")), event_time_s=time_s, source=source)
        yield from conversation.other(message, record.line)
    elif action == "condensation":
        if summary := as_text(args.get("summary")):
            message = Message(Role.USER, summary, event_time_s=time_s, compaction=True, source=source)
            yield from conversation.other(message, record.line)
    else:
        yield from conversation.assistant(_call_piece(event, as_text(action), record.line, source, time_s))


def _call_piece(event: dict[str, Any], action: str, line: int | None, source: str, time_s: float | None) -> Piece:
    args = as_dict(event.get("args"))
    metadata = as_dict(event.get("tool_call_metadata"))
    call_id = as_key(metadata.get("tool_call_id"))
    response = as_dict(metadata.get("model_response"))
    sampled = _sampled_arguments(response, call_id)
    rest = {key: value for key, value in args.items() if key not in _THOUGHT_KEYS}
    call = ToolCall(
        call_id or f"event-{as_key(event.get('id')) or line}",
        as_text(metadata.get("function_name")) or action,
        compact_json(rest) if sampled is None else sampled,
    )
    return Piece(
        as_key(response.get("id")),
        line,
        source,
        texts=[as_text(args.get("thought"))],
        thoughts=[as_text(args.get("reasoning_content"))],
        calls=[call],
        time_s=time_s,
    )


def _sampled_arguments(response: dict[str, Any], call_id: str | None) -> str | None:
    """Return the arguments as the model wrote them, if the event kept its response."""
    for choice in as_list(response.get("choices")):
        for call in as_list(as_dict(as_dict(choice).get("message")).get("tool_calls")):
            if call_id is not None and as_dict(call).get("id") == call_id:
                return arguments_text(as_dict(as_dict(call).get("function")).get("arguments"))
    return None


def _result(event: dict[str, Any], observation: str, source: str, time_s: float | None) -> Message:
    metadata = as_dict(event.get("tool_call_metadata"))
    cause = as_key(event.get("cause"))
    exit_code = as_dict(as_dict(event.get("extras")).get("metadata")).get("exit_code", 0)
    return Message(
        Role.TOOL,
        content_text(event.get("content")),
        tool_call_id=as_key(metadata.get("tool_call_id")) or (f"event-{cause}" if cause else None),
        name=as_text(metadata.get("function_name")) or None,
        is_error=observation == "error" or exit_code not in (0, -1, None),
        event_time_s=time_s,
        source=source,
    )
