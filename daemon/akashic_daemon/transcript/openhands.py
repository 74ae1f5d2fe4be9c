"""OpenHands: event logs, as JSONL or a list, and logs of single model calls.

Events carry a `kind` (or, in versions before 1.0, `action` / `observation`). Actions with one `llm_response_id` are the
calls of one assistant message. A `Condensation` holds the summary of forgotten events. A model-call log is OpenAI
messages plus the `response`. Naive times are UTC.
"""

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
    content_text,
    parse_time,
)
from akashic_daemon.transcript.item import MAIN, Imported, Item, Record
from akashic_daemon.transcript.openai_runs import OpenAIReader, run_messages, transcript_message
from akashic_daemon.transcript.openhands_v0 import V0_SOURCES, read_v0_event
from akashic_daemon.transcript.turn import Conversation, Piece

NOISE = frozenset(
    {
        "CondensationRequest",
        "ConversationErrorEvent",
        "ConversationStateUpdateEvent",
        "InterruptEvent",
        "LLMCompletionLogEvent",
        "PauseEvent",
        "StreamingDeltaEvent",
        "TokenEvent",
    }
)
"""Events of the run's state; the model never saw them."""


class OpenHandsReader:
    """Reads events of one conversation, or model-call logs."""

    def __init__(self) -> None:
        self._conversation = Conversation(MAIN, is_main=True)
        self._calls = OpenAIReader("openhands")

    def feed(self, record: Record) -> Iterator[Item]:
        """Take an event or a model-call log."""
        if run_messages(record.value) is not None:
            yield from self._model_call(record)
        elif isinstance(record.value, dict) and isinstance(record.value.get("kind"), str):
            yield from self._event(record.value, record)
        elif isinstance(record.value, dict) and record.value.get("source") in V0_SOURCES:
            yield from read_v0_event(self._conversation, record)
        else:
            raise TranscriptError("neither an event nor a log of a model call")

    def finish(self) -> Iterator[Imported]:
        """End the open turn."""
        yield from self._conversation.finish()

    def _model_call(self, record: Record) -> Iterator[Item]:
        key = MAIN
        for item in self._calls.feed(record):
            if isinstance(item, Imported):
                key = item.conversation
            yield item
        response = as_dict(as_dict(record.value).get("response"))
        for choice in as_list(response.get("choices"))[:1]:
            raw = {**as_dict(as_dict(choice).get("message")), "timestamp": response.get("created")}
            message = transcript_message(raw, "response", "openhands:response")
            yield Imported(key, message, record.line, True)

    def _event(self, event: dict[str, Any], record: Record) -> Iterator[Item]:
        kind = event["kind"]
        source = f"openhands:{as_key(event.get('id')) or record.place}"
        time_s = parse_time(event.get("timestamp"))
        if kind == "ActionEvent":
            yield from self._conversation.assistant(_action(event, record.line, source, time_s))
        elif kind in ("ObservationEvent", "UserRejectObservation", "AgentErrorEvent"):
            yield from self._conversation.result(_result(event, source, time_s), record.line)
        elif kind == "MessageEvent":
            yield from self._message(event, record, source, time_s)
        elif kind == "SystemPromptEvent":
            text = content_text(event.get("system_prompt"))
            message = Message(Role.SYSTEM, text, event_time_s=time_s, source=source)
            yield from self._conversation.other(message, record.line)
        elif kind in ("Condensation", "CondensationSummaryEvent"):
            if summary := as_text(event.get("summary")):
                message = Message(Role.USER, summary, event_time_s=time_s, compaction=True, source=source)
                yield from self._conversation.other(message, record.line)
        elif kind not in NOISE:
            raise TranscriptError(f"unknown event kind {kind!r}"[:200])

    def _message(self, event: dict[str, Any], record: Record, source: str, time_s: float | None) -> Iterator[Item]:
        raw = event.get("llm_message")
        if not isinstance(raw, dict):
            raise TranscriptError("a MessageEvent without llm_message")
        # Context that a client adds to the user's message was shown to the model after it.
        content = as_list(raw.get("content")) + as_list(event.get("extended_content")) or raw.get("content")
        body = {**raw, "content": content, "timestamp": event.get("timestamp")}
        yield from self._conversation.other(transcript_message(body, record.place, source), record.line)


def _action(event: dict[str, Any], line: int | None, source: str, time_s: float | None) -> Piece:
    call = as_dict(event.get("tool_call"))
    body = as_dict(call.get("function")) or call
    name = as_text(body.get("name")) or as_text(event.get("tool_name"))
    call_id = as_key(call.get("id")) or as_key(event.get("tool_call_id")) or ""
    arguments = body.get("arguments", event.get("action"))
    thought = content_text(event.get("thought"))
    reasoning = as_text(event.get("reasoning_content"))
    if reasoning and thought.startswith("<think>"):
        # Servers that don't split reasoning off leave it in the text too.
        thought = thought.partition("</think>")[2].lstrip()
    return Piece(
        as_key(event.get("llm_response_id")),
        line,
        source,
        texts=[thought],
        thoughts=[reasoning],
        calls=[ToolCall(call_id, name, arguments_text(arguments))],
        time_s=time_s,
    )


def _result(event: dict[str, Any], source: str, time_s: float | None) -> Message:
    observation = as_dict(event.get("observation"))
    refused = event["kind"] != "ObservationEvent"
    content = observation.get("content", observation.get("output"))
    if refused:
        content = event.get("error", event.get("rejection_reason"))
    return Message(
        Role.TOOL,
        content_text(content),
        tool_call_id=as_key(event.get("tool_call_id")),
        name=as_text(event.get("tool_name")) or None,
        is_error=refused or observation.get("is_error") is True,
        event_time_s=time_s,
        source=source,
    )
