"""SWE-agent trajectories: `history` (what the model saw), `trajectory` (the steps), `info`.

Demonstrations (`is_demo`) aren't part of the run. Older files give a tool's output the role user; it is an
observation if the message before it made an action, and is imported as a tool's result. Without a history the
steps are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from akashic_daemon.errors import TranscriptError
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.transcript.content import as_dict, as_key, as_list, as_text
from akashic_daemon.transcript.item import MAIN, Imported, Item, Problem, Record
from akashic_daemon.transcript.openai_runs import transcript_message

_MAIN_AGENTS = ("primary", "main")


class SweAgentReader:
    """Reads runs, one a document or line."""

    def feed(self, record: Record) -> Iterator[Item]:
        """Take one run."""
        document = as_dict(record.value)
        base = MAIN if record.alone else as_key(document.get("instance_id")) or f"run-{record.index}"
        if isinstance(document.get("history"), list):
            yield from _history(document["history"], base, record)
        elif isinstance(document.get("trajectory"), list):
            yield from _steps(document["trajectory"], base, record)
        else:
            raise TranscriptError("neither a `history` nor a `trajectory` list")

    def finish(self) -> Iterator[Item]:
        """Nothing is held back."""
        yield from ()


def _history(history: list[Any], base: str, record: Record) -> Iterator[Item]:
    acted: set[str] = set()
    for index, raw in enumerate(history):
        entry = as_dict(raw)
        if entry.get("is_demo"):
            continue
        agent = as_key(entry.get("agent")) or _MAIN_AGENTS[0]
        is_main = agent in _MAIN_AGENTS
        key = base if is_main else agent if base == MAIN else f"{base}/{agent}"
        try:
            message = transcript_message(raw, f"history[{index}]", f"swe-agent:history[{index}]")
        except TranscriptError as error:
            yield Problem(error.message, record.line)
            continue
        yield Imported(key, _with_result_role(message, entry, key in acted), record.line, is_main)
        acted.discard(key)
        if message.role is Role.ASSISTANT and entry.get("action"):
            acted.add(key)


def _with_result_role(message: Message, entry: dict[str, Any], after_action: bool) -> Message:
    calls = [as_key(call) for call in as_list(entry.get("tool_call_ids"))]
    if message.role is Role.USER and after_action:
        message = replace(message, role=Role.TOOL)
    if message.role is Role.TOOL and message.tool_call_id is None and calls:
        message = replace(message, tool_call_id=calls[0])
    return message


def _steps(steps: list[Any], base: str, record: Record) -> Iterator[Item]:
    for index, raw in enumerate(steps):
        step = as_dict(raw)
        source = f"swe-agent:trajectory[{index}]"
        said = as_text(step.get("response")) or as_text(step.get("thought")) or as_text(step.get("action"))
        if not said:
            yield Problem(f"trajectory[{index}]: neither response, thought nor action", record.line)
            continue
        spoken = Message(Role.ASSISTANT, said, source=source)
        yield Imported(base, spoken, record.line, True)
        if "observation" in step:
            seen = Message(Role.TOOL, as_text(step["observation"]), source=source)
            yield Imported(base, seen, record.line, True)
