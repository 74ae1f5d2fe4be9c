"""A trajectory's messages as what memory takes in: who said what, when, and which message it was.

System messages are instructions, not something that was said; messages that memory itself put there are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from akashic_daemon.memory.memory import Said
from akashic_daemon.trajectory.message import Message, Role


def said_of(messages: Iterable[Message]) -> list[Said]:
    """Return what is to be remembered of messages, in their order."""
    out = []
    for message in messages:
        if message.role is Role.SYSTEM or message.is_recalled:
            continue
        text = text_of(message)
        if text.strip():
            out.append(Said(_speaker(message), text, str(message.digest()), message.event_time_s))
    return out


def text_of(message: Message) -> str:
    """Return a message's words, and its calls as text; thinking isn't something that was said."""
    calls = [f"[calls {call.name}] {call.arguments}" for call in message.tool_calls]
    return "\n".join([message.content, *calls] if message.content else calls)


def _speaker(message: Message) -> str:
    if message.role is Role.TOOL:
        return f"tool {message.name}" if message.name else "tool"
    return message.name or message.role.value
