"""Lines that clients put into system messages for their own ends, and that change with each request.

Claude Code begins its system prompt with a billing line whose checksum is new each time; a cache of prefixes could then
never reuse anything. Such lines mean nothing to a model: they are taken out before rendering, and a note says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from akashic_daemon.trajectory.message import Message, Role


class VolatileLines:
    """Knows these lines by how they begin, as a regular expression; an empty one knows none."""

    def __init__(self, pattern: str) -> None:
        self._begin = re.compile(pattern) if pattern else None

    def without(self, messages: Sequence[Message]) -> tuple[tuple[Message, ...], int]:
        """Return the messages with those lines gone from system messages, and how many they were.

        A first system message of which nothing is left goes too: an empty one would hide the template's own.
        """
        if self._begin is None:
            return tuple(messages), 0
        out: list[Message] = []
        removed = 0
        for index, message in enumerate(messages):
            if message.role is not Role.SYSTEM:
                out.append(message)
                continue
            lines = message.content.split("\n")
            kept = [line for line in lines if not self._begin.match(line)]
            removed += len(lines) - len(kept)
            if len(kept) == len(lines):
                out.append(message)
            elif kept or index > 0 or len(messages) == 1:
                out.append(replace(message, content="\n".join(kept)))
        return tuple(out), removed
