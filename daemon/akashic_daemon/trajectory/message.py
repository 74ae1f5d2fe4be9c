"""A message of a trajectory, and its digest.

Messages are immutable. `arguments` of a tool call is kept as the exact text that was sampled or sent, never
re-serialised. Event times, provenance and usage don't take part in the digest: the same words are the same message.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from akashic_daemon.errors import BadRequest
from akashic_daemon.types import ChainDigest, MessageDigest

RECALL_SOURCE = "akashic-memory:"
"""How the `source` of messages begins that memory put before a question; after it come the namespaces, with commas."""


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that an assistant message makes; `arguments` is JSON text, byte for byte as it came."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as the model is to see it.

    event_time_s: when it happened by its own record, seconds since the epoch; None if the record doesn't say.
    compaction: the text stands for everything before it (an agent's own summary of its history).
    source: where it came from, e.g. `claude-code:<uuid>`; free text for people and provenance.
    """

    role: Role
    content: str = ""
    thinking: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    is_error: bool = False
    event_time_s: float | None = None
    compaction: bool = False
    source: str | None = None

    @property
    def is_recalled(self) -> bool:
        """Whether memory put it into its conversation."""
        return self.source is not None and self.source.startswith(RECALL_SOURCE)

    @property
    def said(self) -> str:
        """What was sampled of it, as one text by which its ids are kept: its content, and thoughts and calls if it has any."""
        text = self.content if self.thinking is None else f"\x1e{self.thinking}\x1e{self.content}"
        if not self.tool_calls:
            return text
        calls = [[c.id, c.name, c.arguments] for c in self.tool_calls]
        return f"{text}\x1f{json.dumps(calls, ensure_ascii=False)}"

    def digest(self) -> MessageDigest:
        """Return the tagged digest of what the message says."""
        fields = [
            self.role.value,
            self.content,
            self.thinking,
            [[c.id, c.name, c.arguments] for c in self.tool_calls],
            self.tool_call_id,
            self.name,
        ]
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        return MessageDigest(
            "msg1:" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        )

    def to_json(self) -> dict[str, Any]:
        """Return the message for storage and export; `from_json` is the inverse."""
        out: dict[str, Any] = {"role": self.role.value, "content": self.content}
        if self.thinking is not None:
            out["thinking"] = self.thinking
        if self.tool_calls:
            out["tool_calls"] = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in self.tool_calls]
        for key in ("tool_call_id", "name", "event_time_s", "source"):
            value = getattr(self, key)
            if value is not None:
                out[key] = value
        if self.is_error:
            out["is_error"] = True
        if self.compaction:
            out["compaction"] = True
        return out

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Message:
        """Read what `to_json` wrote. Raises BadRequest on an unknown role or a wrong shape."""
        try:
            calls = tuple(ToolCall(c["id"], c["name"], c["arguments"]) for c in data.get("tool_calls", ()))
            return Message(
                role=Role(data["role"]),
                content=data["content"],
                thinking=data.get("thinking"),
                tool_calls=calls,
                tool_call_id=data.get("tool_call_id"),
                name=data.get("name"),
                is_error=bool(data.get("is_error", False)),
                event_time_s=data.get("event_time_s"),
                compaction=bool(data.get("compaction", False)),
                source=data.get("source"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(f"reading a stored message: {error!r} in {sorted(data)}") from error


def chain(parent: ChainDigest | None, message: Message) -> ChainDigest:
    """Return the digest of `message` standing after everything that `parent` names."""
    text = f"{parent or 'root'}\n{message.digest()}"
    return ChainDigest("chain1:" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def chain_all(messages: Iterable[Message], parent: ChainDigest | None = None) -> list[ChainDigest]:
    """Return the chain digest after each of `messages`."""
    out: list[ChainDigest] = []
    for message in messages:
        parent = chain(parent, message)
        out.append(parent)
    return out
