"""Putting one assistant message together from the pieces that event logs cut it into.

Logs write a call, its result, and the next call of the same model response in turn. As messages they are one
assistant message with all its calls, then the results: so results wait while their turn is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.transcript.content import joined
from akashic_daemon.transcript.item import Imported


@dataclass(slots=True)
class Piece:
    """A part of an assistant message. Pieces with one `key` belong together; None belongs to nothing else."""

    key: str | None
    line: int | None
    source: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    time_s: float | None = None


class Conversation:
    """The open turn of one conversation."""

    def __init__(self, key: str, *, is_main: bool) -> None:
        self.key = key
        self.is_main = is_main
        self._open: Piece | None = None
        self._held: list[Imported] = []

    def assistant(self, piece: Piece) -> Iterator[Imported]:
        """Add a piece; a turn that it doesn't belong to ends."""
        if self._open is None or piece.key is None or self._open.key != piece.key:
            yield from self.finish()
            self._open = piece
            return
        known = {call.id for call in self._open.calls if call.id}
        self._open.texts += piece.texts
        # Some logs repeat the response's reasoning with each of its calls.
        self._open.thoughts += [thought for thought in piece.thoughts if thought not in self._open.thoughts]
        self._open.calls += [call for call in piece.calls if call.id not in known]
        if self._open.time_s is None:
            self._open.time_s = piece.time_s

    def result(self, message: Message, line: int | None) -> Iterator[Imported]:
        """Take a tool's result; it comes out after the turn that is open."""
        item = self._imported(message, line)
        if self._open is None:
            yield item
        else:
            self._held.append(item)

    def other(self, message: Message, line: int | None) -> Iterator[Imported]:
        """Take a message of any other kind; the open turn ends before it."""
        yield from self.finish()
        yield self._imported(message, line)

    def finish(self) -> Iterator[Imported]:
        """End the open turn."""
        piece, held = self._open, self._held
        self._open, self._held = None, []
        if piece is not None:
            message = _message(piece)
            if message.content or message.thinking or message.tool_calls:
                yield self._imported(message, piece.line)
        yield from held

    def _imported(self, message: Message, line: int | None) -> Imported:
        return Imported(self.key, message, line, self.is_main)


def _message(piece: Piece) -> Message:
    return Message(
        Role.ASSISTANT,
        joined(piece.texts),
        thinking=joined([t for t in piece.thoughts if t]) or None,
        tool_calls=tuple(piece.calls),
        event_time_s=piece.time_s,
        source=piece.source,
    )


class Conversations:
    """Every conversation of one file, made on first use."""

    def __init__(self) -> None:
        self._by_key: dict[str, Conversation] = {}

    def get(self, key: str, *, is_main: bool) -> Conversation:
        """Return the conversation `key`."""
        if key not in self._by_key:
            self._by_key[key] = Conversation(key, is_main=is_main)
        return self._by_key[key]

    def finish(self) -> Iterator[Imported]:
        """End every open turn."""
        for conversation in self._by_key.values():
            yield from conversation.finish()
