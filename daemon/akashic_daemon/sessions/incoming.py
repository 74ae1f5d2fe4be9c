"""What is read of an exported session, and whether it means something: nothing in a file is taken at its word.

The parts themselves were checked for damage (`protocol.archive`); here they become messages, operations and ids. What
isn't right is counted in `problems`, by what is said of it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from akashic_daemon.errors import AkashicError, BadRequest
from akashic_daemon.program.message_ops import DropMessages, DropTokens, MessageOp, ReplaceMessage, ReposAt
from akashic_daemon.program.path import MAX_OPS
from akashic_daemon.program.wire import from_stored
from akashic_daemon.protocol.archive import Damage, Kind, Part, read_parts
from akashic_daemon.trajectory.message import Message, Role, chain_all
from akashic_daemon.transcript.content import storable
from akashic_daemon.types import ChainDigest

_BATCH_BYTES = 16 << 20
Sampled = tuple[ChainDigest | None, str, list[int]]
"""What stands before an answer, what it says, and the ids that it was sampled as."""
_MOST_TOKEN = (1 << 31) - 1
_MOST_TIME_S = 1e11
PARTS = {
    Kind.HOME: "what the session is called and was computed by",
    Kind.MESSAGES: "messages",
    Kind.PROGRAM: "policy and operations",
    Kind.SAMPLED: "tokens of sampled answers",
    Kind.TRACE: "what was computed last",
    Kind.LABEL: "the label of a block of KV",
    Kind.KV: "a block of KV",
}


@dataclass(slots=True)
class Incoming:
    """What was read of a file so far."""

    home: Mapping[str, Any] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    left_out_messages: int = 0
    program: Mapping[str, Any] = field(default_factory=dict)
    sampled: Mapping[str, Any] = field(default_factory=dict)
    trace: Part | None = None
    problems: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0

    def take(self, part: Part) -> None:
        """Take in a part that isn't KV."""
        if part.kind == Kind.HOME:
            self.home = part.head
        elif part.kind == Kind.MESSAGES:
            self._take_messages(part)
        elif part.kind == Kind.PROGRAM:
            self.program = part.head
        elif part.kind == Kind.SAMPLED:
            self.sampled = part.head
        elif part.kind == Kind.TRACE:
            self.trace = part

    def _take_messages(self, part: Part) -> None:
        """Take messages that follow on those before: a history with a gap would say something else."""
        lines = part.body.splitlines()
        if part.head.get("first") != len(self.messages):
            self.left_out_messages += len(lines)
            return
        for number, line in enumerate(lines):
            try:
                self.messages.append(_message(line))
            except (ValueError, BadRequest):
                self.problems["messages that can't be read"] += 1
                self.left_out_messages += len(lines) - number
                return

    def text(self, name: str) -> str:
        """Return a word of the home, empty when it has none."""
        value = self.home.get(name)
        return value if isinstance(value, str) else ""

    @property
    def fingerprint(self) -> str:
        """By what the session was computed; empty when that can't be read."""
        found = self.text("fingerprint") or (self.trace.head.get("fingerprint") if self.trace is not None else "")
        return found if isinstance(found, str) else ""

    @property
    def parts(self) -> dict[str, str]:
        """What the fingerprint is made of."""
        found = self.home.get("parts")
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}

    def answers(self) -> list[Sampled]:
        """Return the answers whose ids the file has."""
        chains = [None, *chain_all(self.messages)]
        out: list[Sampled] = []
        found = self.sampled.get("ids")
        for pair in found if isinstance(found, list) else ():
            if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], list)):
                continue
            index, ids = pair
            if whole(index, len(self.messages) - 1) is None or any(whole(i, _MOST_TOKEN) is None for i in ids):
                continue
            message = self.messages[index]
            if message.role is Role.ASSISTANT and message.said and ids:
                out.append((chains[index], message.said, ids))
        return out

    def operations(self) -> list[MessageOp]:
        """Return the session's operations, none when they can't be read; those that don't fit its messages are left out."""
        stored = self.program.get("ops")
        if not isinstance(stored, list):
            return []
        try:
            found = from_stored(stored)
        except (AkashicError, AttributeError, TypeError, ValueError, KeyError):
            self.problems[f"damaged: {PARTS[Kind.PROGRAM]}"] += 1
            return []
        fitting = [op for op in found if _fits(op, len(self.messages))][:MAX_OPS]
        if left_out := len(found) - len(fitting):
            self.problems["operations that don't fit the messages that came"] += left_out
        return fitting

    def places(self) -> dict[str, list[int]]:
        """Return where operations without a place took effect."""
        found, count = self.program.get("places"), len(self.messages)
        if not isinstance(found, dict):
            return {}
        lists = {str(name): at for name, at in found.items() if isinstance(at, list)}
        places = {name: [n for n in at if whole(n, count) is not None] for name, at in lists.items()}
        return {name: at for name, at in places.items() if at}


class Reading:
    """A file's parts, read on worker threads."""

    def __init__(self, file: BinaryIO, label: str) -> None:
        self._parts: Iterator[Part | Damage] = read_parts(file, label)

    async def batch(self, incoming: Incoming) -> list[Part]:
        """Read some blocks, and what isn't KV before them; none at the file's end."""
        return await asyncio.to_thread(self._batch, incoming)

    def _batch(self, incoming: Incoming) -> list[Part]:
        out: list[Part] = []
        size_bytes = 0
        while size_bytes < _BATCH_BYTES and (found := next(self._parts, None)) is not None:
            if isinstance(found, Damage):
                self._note(found, incoming)
                continue
            incoming.read_bytes = found.end_bytes
            if found.kind == Kind.FAIL:
                incoming.problems[f"the export broke off: {found.head.get('message', 'it is not said why')}"] += 1
            elif found.kind in (Kind.LABEL, Kind.KV):
                out.append(found)
                size_bytes += len(found.body)
            else:
                incoming.take(found)
        return out

    @staticmethod
    def _note(damage: Damage, incoming: Incoming) -> None:
        part = next((words for kind, words in PARTS.items() if kind == damage.kind), None)
        said = f"damaged: {part}" if part is not None else f"at byte {damage.at_bytes:,}: {damage.what}"
        incoming.problems[said] += 1


def _message(line: bytes) -> Message:
    data = json.loads(line)
    if not isinstance(data, dict):
        raise BadRequest("reading a message: it is no object")
    message = Message.from_json(data)
    calls_are_text = all(isinstance(v, str) for c in message.tool_calls for v in (c.id, c.name, c.arguments))
    optional = (message.thinking, message.tool_call_id, message.name, message.source)
    if not (isinstance(message.content, str) and calls_are_text and all(isinstance(o, str | None) for o in optional)):
        raise BadRequest("reading a message: a text in it is no text")
    return replace(storable(message), event_time_s=_time(message.event_time_s))


def _time(value: object) -> float | None:
    """Return a time, None for what JSON can't say or nobody can mean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < _MOST_TIME_S else None


def _fits(op: MessageOp, count: int) -> bool:
    """Tell if an operation can have been carried out in a history of `count` messages.

    One that can't would be refused with each request of the session.
    """
    if op.at is None or not 0 <= op.at <= count:
        return False
    if isinstance(op, DropMessages):
        return 0 < len(op.messages) == len(set(op.messages)) and all(0 <= m < op.at for m in op.messages)
    if isinstance(op, DropTokens):
        return bool(op.ranges) and all(0 <= start < end for start, end in op.ranges)
    if isinstance(op, ReplaceMessage):
        return isinstance(op.replacement, str) and 0 <= op.message < op.at
    return isinstance(op, ReposAt)


def whole(value: object, most: int) -> int | None:
    """Return a whole number from 0 to `most`, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None
