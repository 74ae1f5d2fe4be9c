"""Claude Code session logs: one JSON object a line.

One API message stands on several lines with one `message.id`, its tools' results between them. Tool results come
as user lines. Sub-agents are lines with `agentId`, or in older logs `isSidechain` lines hanging on a root of their own.
A user line with `isCompactSummary` stands for all before it. Branches left by a rewind are counted, not read: see
`branches`. Attachments with text are what the user said beside the prompt.
The `stream-json` output of `claude -p` has the same lines, and names sub-agents by `parent_tool_use_id`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from akashic_daemon.errors import TranscriptError
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.transcript.branches import Branches, is_main
from akashic_daemon.transcript.claude_attachments import attachment_text, is_known
from akashic_daemon.transcript.content import (
    arguments_text,
    as_dict,
    as_key,
    as_list,
    as_text,
    content_text,
    joined,
    parse_time,
    part_text,
)
from akashic_daemon.transcript.item import MAIN, Imported, Item, Problem, Record
from akashic_daemon.transcript.turn import Conversation, Conversations, Piece

NOISE = frozenset(
    {
        "agent-color",
        "agent-name",
        "ai-title",
        "attribution-snapshot",
        "custom-title",
        "file-history-snapshot",
        "last-prompt",
        "mode",
        "permission-mode",
        "pr-link",
        "progress",
        "queue-operation",
        "rate_limit_event",
        "result",
        "stream_event",
        "summary",
        "system",
        "tag",
        "worktree-state",
    }
)
"""Line types that say nothing to the model: the log's own book-keeping, hooks, titles of sessions."""

LEFT_BEHIND = "a message on a branch that a rewind left behind was not read"


class ClaudeCodeReader:
    """Reads one session log, sub-agents included."""

    def __init__(self) -> None:
        self._conversations = Conversations()
        self._roots: dict[str, str] = {}
        self._branches = Branches()
        self._left: set[str] = set()

    def survey(self, record: Record) -> None:
        """Learn how the lines hang together."""
        self._branches.survey(record.index, record.value)

    def settle(self) -> None:
        """Choose the branch that is read."""
        self._branches.settle()

    def feed(self, record: Record) -> Iterator[Item]:
        """Take one line."""
        line = record.value
        if not isinstance(line, dict):
            raise TranscriptError(f"expected an object, found {type(line).__name__}")
        kind = line.get("type")
        if kind in ("user", "assistant"):
            body = line.get("message")
            if not isinstance(body, dict):
                raise TranscriptError(f"a {kind} line without a message object")
            if not line.get("isApiErrorMessage"):
                read = _user if kind == "user" else _assistant
                yield from self._unless_abandoned(record, read(self._conversation(line), record, body))
        elif kind == "attachment":
            yield from self._attachment(record, as_dict(line.get("attachment")))
        elif not isinstance(kind, str) or kind not in NOISE:
            raise TranscriptError(f"unknown line type {kind!r}"[:200])

    def finish(self) -> Iterator[Imported]:
        """End every open turn."""
        yield from self._conversations.finish()

    def _attachment(self, record: Record, attachment: dict[str, Any]) -> Iterator[Item]:
        text = attachment_text(attachment)
        if text is None:
            if not is_known(attachment):
                raise TranscriptError(f"an attachment of the unknown kind {attachment.get('type')!r}"[:200])
            return
        message = Message(
            Role.USER, text, event_time_s=parse_time(record.value.get("timestamp")), source=_source(record)
        )
        yield from self._unless_abandoned(record, self._conversation(record.value).other(message, record.line))

    def _unless_abandoned(self, record: Record, items: Iterator[Imported]) -> Iterator[Item]:
        """Pass a message on; of one that a rewind left behind, tell once that there was one."""
        line = record.value
        if not is_main(line) or not self._branches.abandons(record.index, line):
            yield from items
            return
        name = as_key(as_dict(line.get("message")).get("id")) or record.place
        if name not in self._left:
            self._left.add(name)
            yield Problem(LEFT_BEHIND, record.line)

    def _conversation(self, line: dict[str, Any]) -> Conversation:
        agent = as_key(line.get("agentId")) or as_key(line.get("parent_tool_use_id"))
        if agent is None and line.get("isSidechain"):
            agent = self._root_of(line)
        return self._conversations.get(agent or MAIN, is_main=agent is None)

    def _root_of(self, line: dict[str, Any]) -> str:
        """Name a sub-agent without an id after the first line of its chain."""
        own = as_key(line.get("uuid")) or "?"
        root = self._roots.get(as_text(line.get("parentUuid")), f"sidechain-{own}")
        self._roots[own] = root
        return root


def has_api_blocks(raw: Any) -> bool:
    """Tell a message in the form of Anthropic's API by its blocks for calls and results."""
    blocks = as_list(raw.get("content")) if isinstance(raw, dict) else []
    return any(isinstance(block, dict) and block.get("type") in ("tool_use", "tool_result") for block in blocks)


def api_messages(raw: dict[str, Any], source: str) -> list[Message]:
    """Read one message in the form of Anthropic's API; the results in a user's message become tool messages."""
    conversation = Conversation(MAIN, is_main=True)
    role = raw.get("role")
    if role not in ("user", "assistant"):
        raise TranscriptError(f"calls or results in a message with the role {role!r}"[:200])
    read = _user if role == "user" else _assistant
    items = (*read(conversation, Record(0, None, raw), raw), *conversation.finish())
    return [replace(item.message, source=source) for item in items]


def _blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    content = body.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [
        block if isinstance(block, dict) else {"type": "text", "text": as_text(block)} for block in as_list(content)
    ]


def _source(record: Record) -> str:
    return f"claude-code:{as_key(record.value.get('uuid')) or record.place}"


def _result(block: dict[str, Any], record: Record) -> Message:
    return Message(
        Role.TOOL,
        content_text(block.get("content")),
        tool_call_id=as_key(block.get("tool_use_id")),
        is_error=bool(block.get("is_error")),
        event_time_s=parse_time(record.value.get("timestamp")),
        source=_source(record),
    )


def _user(conversation: Conversation, record: Record, body: dict[str, Any]) -> Iterator[Imported]:
    texts: list[str] = []
    for block in _blocks(body):
        if as_text(block.get("type")).endswith("tool_result"):
            yield from conversation.result(_result(block, record), record.line)
        else:
            texts.append(part_text(block))
    if text := joined(texts):
        message = Message(
            Role.USER,
            text,
            event_time_s=parse_time(record.value.get("timestamp")),
            compaction=bool(record.value.get("isCompactSummary")),
            source=_source(record),
        )
        yield from conversation.other(message, record.line)


def _assistant(conversation: Conversation, record: Record, body: dict[str, Any]) -> Iterator[Imported]:
    piece = Piece(
        as_key(body.get("id")), record.line, _source(record), time_s=parse_time(record.value.get("timestamp"))
    )
    results: list[Message] = []
    for block in _blocks(body):
        kind = as_text(block.get("type"))
        if kind == "thinking":
            piece.thoughts.append(as_text(block.get("thinking")))
        elif kind.endswith("tool_use"):
            call = ToolCall(
                as_key(block.get("id")) or "", as_text(block.get("name")), arguments_text(block.get("input"))
            )
            piece.calls.append(call)
        elif kind.endswith("tool_result"):
            results.append(_result(block, record))
        elif kind != "redacted_thinking":
            piece.texts.append(part_text(block))
    yield from conversation.assistant(piece)
    for result in results:
        yield from conversation.result(result, record.line)
