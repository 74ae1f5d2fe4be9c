"""Transcripts made of OpenAI messages, and akashic's own export.

A record is a message, a list of messages, or a run that holds such a list (`messages`, tau-bench's `traj`); tau2's
`simulations` is a document of runs. Messages in the form of Anthropic's API are known by their blocks. akashic's export is one `Message.to_json` a line: the same thing with fields of
ours, so each record is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from akashic_daemon.errors import BadRequest, TranscriptError
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.transcript.claude_code import api_messages, has_api_blocks
from akashic_daemon.transcript.content import as_dict, as_key, content_text, parse_time
from akashic_daemon.transcript.item import MAIN, Imported, Item, Problem, Record
from akashic_daemon.transcript.openai_messages import message_from_openai

_EXPORT_FIELDS = frozenset(
    {"role", "content", "thinking", "tool_calls", "tool_call_id", "name", "event_time_s", "source"}
    | {"is_error", "compaction"}
)
_EXPORT_MARKS = frozenset({"event_time_s", "compaction", "source", "is_error"})
_RUN_LISTS = ("messages", "traj", "conversation", "conversations")
_RUN_NAMES = ("run_id", "id", "session_id", "conversation_id", "instance_id")


def is_akashic_message(value: Any) -> bool:
    """Tell an exported message by what only `Message.to_json` writes."""
    record = as_dict(value)
    return _fits_export(record) and (bool(record.get("tool_calls")) or bool(_EXPORT_MARKS & record.keys()))


def _fits_export(record: dict[str, Any]) -> bool:
    """Tell whether `Message.to_json` could have written this; a plain OpenAI message fits too."""
    if not isinstance(record.get("role"), str) or not isinstance(record.get("content"), str):
        return False
    calls = record.get("tool_calls", [])
    flat = isinstance(calls, list) and all(as_dict(call).keys() == {"id", "name", "arguments"} for call in calls)
    return flat and record.keys() <= _EXPORT_FIELDS


def run_messages(value: Any) -> list[Any] | None:
    """Return the messages of a run, or None if `value` is no run."""
    if isinstance(value, list):
        return value
    lists = (as_dict(value).get(key) for key in _RUN_LISTS)
    return next((found for found in lists if isinstance(found, list)), None)


def run_name(value: Any) -> str | None:
    """Return what a run calls itself: an id, or its task and trial."""
    run = as_dict(value)
    for key in _RUN_NAMES:
        if name := as_key(run.get(key)):
            return name
    task, trial = as_key(run.get("task_id")), as_key(run.get("trial"))
    if task is None:
        return None
    return f"task-{task}" if trial is None else f"task-{task}-trial-{trial}"


class OpenAIReader:
    """Reads messages and runs; `format_name` goes into the messages' source."""

    def __init__(self, format_name: str = "openai") -> None:
        self._format = format_name
        self._names: set[str] = set()

    def feed(self, record: Record) -> Iterator[Item]:
        """Take a message or a run."""
        runs = as_dict(record.value).get("simulations")
        if isinstance(runs, list):
            for index, run in enumerate(runs):
                yield from self._run(run, self._name(run, index), record)
        elif run_messages(record.value) is not None:
            key = MAIN if record.alone else self._name(record.value, record.index)
            yield from self._run(record.value, key, record)
        else:
            for message in self._messages(record.value, record.place):
                yield Imported(MAIN, message, record.line, True)

    def finish(self) -> Iterator[Item]:
        """Nothing is held back."""
        yield from ()

    def _name(self, run: Any, index: int) -> str:
        """Name a run; a name that was given out before gets the run's number."""
        name = run_name(run) or f"run-{index}"
        if name in self._names:
            name = f"{name}#{index}"
        self._names.add(name)
        return name

    def _run(self, run: Any, key: str, record: Record) -> Iterator[Item]:
        messages = run_messages(run)
        if messages is None:
            yield Problem(f"{key}: no list of messages", record.line)
            return
        if system := content_text(as_dict(run).get("system")):
            # Anthropic's API has the system prompt beside the messages.
            yield Imported(key, Message(Role.SYSTEM, system, source=f"{self._format}:{key}"), record.line, True)
        for index, raw in enumerate(messages):
            try:
                found = self._messages(raw, f"{key}[{index}]")
            except TranscriptError as error:
                yield Problem(error.message, record.line)
                continue
            for message in found:
                yield Imported(key, message, record.line, True)

    def _messages(self, raw: Any, place: str) -> list[Message]:
        source = f"{self._format}:{place}"
        results = as_dict(raw).get("tool_messages")
        if isinstance(results, list):
            # tau2 wraps the results of calls that were made together.
            inner = enumerate(results)
            return [m for index, result in inner for m in self._messages(result, f"{place}.tool_messages[{index}]")]
        if self._format == "akashic" and _fits_export(as_dict(raw)):
            return [_exported(raw)]
        if has_api_blocks(raw):
            return api_messages(raw, source)
        return [transcript_message(raw, place, source)]


def transcript_message(raw: Any, place: str, source: str) -> Message:
    """Read one foreign or exported message. Raises TranscriptError if it is none."""
    if is_akashic_message(raw):
        return _exported(raw)
    try:
        message = message_from_openai(raw, place, lenient=True)
    except BadRequest as error:
        raise TranscriptError(str(error)) from error
    return replace(message, source=source)


def _exported(raw: dict[str, Any]) -> Message:
    try:
        message = Message.from_json(raw)
    except BadRequest as error:
        raise TranscriptError(str(error)) from error
    texts = (message.thinking, message.tool_call_id, message.name, message.source)
    calls = [text for call in message.tool_calls for text in (call.id, call.name, call.arguments)]
    time_s = message.event_time_s
    if not all(text is None or isinstance(text, str) for text in (*texts, *calls)):
        raise TranscriptError("a field of an exported message that should be text isn't")
    if isinstance(time_s, str) or (time_s is not None and parse_time(time_s) is None):
        raise TranscriptError("`event_time_s` of an exported message isn't a time")
    return message
