"""Recorded agent runs as the requests that the agent once sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from akashic_daemon.errors import TranscriptError, UsageError

JsonObject = dict[str, Any]
REMOVED_TEXT = "[old tool output removed]"


@dataclass(frozen=True, slots=True)
class Edit:
    """What the client does to old tool results before each request; the newest `keep` are left alone."""

    kind: Literal["none", "prune", "omit"]
    keep: int = 0

    @staticmethod
    def parse(text: str) -> Edit:
        """Read `none`, `prune:K` or `omit:K`. Raises UsageError."""
        if text == "none":
            return Edit("none")
        match = re.fullmatch(r"(prune|omit):(\d+)", text)
        if match is None:
            raise UsageError(f"reading --edit {text!r}: unknown edit", hint="none, prune:K or omit:K")
        return Edit("prune" if match[1] == "prune" else "omit", int(match[2]))

    def apply(self, messages: list[JsonObject]) -> list[JsonObject]:
        """Return the history as the client would send it; `messages` stays as it is."""
        if self.kind == "none":
            return messages
        results = [i for i, message in enumerate(messages) if message["role"] == "tool"]
        old = set(results[: max(0, len(results) - self.keep)])
        if self.kind == "omit":
            return [message for i, message in enumerate(messages) if i not in old]
        return [{**message, "content": REMOVED_TEXT} if i in old else message for i, message in enumerate(messages)]


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded run of an agent."""

    name: str
    messages: list[JsonObject]

    def requests(self, edit: Edit) -> Iterator[list[JsonObject]]:
        """Give what was sent before each answer of the assistant: the recorded answers are the history."""
        for index, message in enumerate(self.messages):
            if message["role"] == "assistant" and index:
                yield edit.apply(self.messages[:index])


def read_run(path: Path) -> Run:
    """Read `{"messages": [...]}`, a list of messages, or one message a line. Raises TranscriptError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TranscriptError(f"reading the run {path}: {error.strerror}", hint="name a readable file") from error
    except UnicodeDecodeError as error:
        raise TranscriptError(
            f"reading the run {path}: it is no UTF-8 at byte {error.start}", hint="convert it"
        ) from error
    messages = _messages(text, path)
    bad = next(
        (i for i, m in enumerate(messages) if not isinstance(m, dict) or not isinstance(m.get("role"), str)), None
    )
    if bad is not None or not messages:
        what = "it is empty" if bad is None else f"message {bad} has no role"
        raise TranscriptError(
            f"reading the run {path}: {what}",
            hint="`akashic import` reads other formats; `session export` gives this one",
        )
    run = Run(path.stem, [_openai_form(message) for message in messages])
    if next(run.requests(Edit("none")), None) is None:
        raise TranscriptError(f"reading the run {path}: it holds no answer of an assistant, so no request to replay")
    return run


def _messages(text: str, path: Path) -> list[Any]:
    try:
        data = json.loads(text)
    except ValueError as whole:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise TranscriptError(f"reading the run {path}: {whole}", hint="it must be JSON or NDJSON") from whole
    if isinstance(data, dict) and "role" in data:
        return [data]
    messages = data.get("messages") if isinstance(data, dict) else data
    if not isinstance(messages, list):
        raise TranscriptError(f"reading the run {path}: it has no list of messages", hint='{"messages": [...]}')
    return messages


def _openai_form(message: JsonObject) -> JsonObject:
    """Return a message of `session export` as OpenAI's API has it; one that has that form already stays as it is."""
    calls = message.get("tool_calls")
    if not calls or "function" in calls[0]:
        return message
    functions = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in calls
    ]
    return {**message, "tool_calls": functions}
