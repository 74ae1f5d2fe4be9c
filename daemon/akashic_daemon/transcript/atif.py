"""ATIF trajectories: one document (or one a line) with `steps`.

The results of a step's calls stand in the same step. Steps with `is_copied_context` repeat another trajectory's and
are skipped.
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
from akashic_daemon.transcript.item import MAIN, Imported, Item, Problem, Record

_ROLES = {"system": Role.SYSTEM, "user": Role.USER, "agent": Role.ASSISTANT}


class AtifReader:
    """Reads trajectories and the sub-agents' trajectories inside them."""

    def feed(self, record: Record) -> Iterator[Item]:
        """Take one trajectory."""
        document = as_dict(record.value)
        if not isinstance(document.get("steps"), list):
            raise TranscriptError("no `steps` list")
        name = _name(document) or f"run-{record.index}"
        yield from _trajectory(document, MAIN if record.alone else name, record, is_main=True)

    def finish(self) -> Iterator[Item]:
        """Nothing is held back."""
        yield from ()


def _name(document: dict[str, Any]) -> str | None:
    return as_key(document.get("trajectory_id")) or as_key(document.get("session_id"))


def _trajectory(document: dict[str, Any], key: str, record: Record, *, is_main: bool) -> Iterator[Item]:
    source = f"atif:{_name(document) or record.place}"
    for index, step in enumerate(as_list(document.get("steps"))):
        role = _ROLES.get(as_text(as_dict(step).get("source")))
        if role is None:
            yield Problem(f"step {index}: unknown source {as_dict(step).get('source')!r}"[:200], record.line)
        elif not step.get("is_copied_context"):
            for message in _messages(step, role, f"{source}#{as_key(step.get('step_id')) or index}"):
                yield Imported(key, message, record.line, is_main)
    for index, child in enumerate(as_list(document.get("subagent_trajectories"))):
        if not isinstance(child, dict):
            yield Problem(f"sub-agent trajectory {index} isn't an object", record.line)
            continue
        yield from _trajectory(child, _name(child) or f"{key}-subagent-{index}", record, is_main=False)


def _messages(step: dict[str, Any], role: Role, source: str) -> Iterator[Message]:
    time_s = parse_time(step.get("timestamp"))
    calls = tuple(_call(as_dict(call)) for call in as_list(step.get("tool_calls")))
    text = content_text(step.get("message"))
    thinking = as_text(step.get("reasoning_content")) or None
    if text or thinking or calls:
        yield Message(role, text, thinking=thinking, tool_calls=calls, event_time_s=time_s, source=source)
    for result in as_list(as_dict(step.get("observation")).get("results")):
        body = as_dict(result)
        yield Message(
            Role.TOOL,
            content_text(body.get("content")),
            tool_call_id=as_key(body.get("source_call_id")),
            event_time_s=time_s,
            source=source,
        )


def _call(call: dict[str, Any]) -> ToolCall:
    return ToolCall(
        as_key(call.get("tool_call_id")) or "",
        as_text(call.get("function_name")),
        arguments_text(call.get("arguments")),
    )
