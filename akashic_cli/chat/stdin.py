"""What a chat is given: a question, and perhaps a transcript or text on stdin."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass

from akashic_cli.render.output import say
from akashic_cli.uploads import CHUNK_BYTES, Source
from akashic_daemon.errors import UsageError

MAX_PROMPT_BYTES = 16 << 20
"""Plain text without a question is itself the question; more than this is a mistake."""


@dataclass(frozen=True, slots=True)
class ChatInput:
    """The question, None for a conversation, and what is to be imported before it."""

    prompt: str | None
    source: Source | None


def find_input(prompt: str | None, *, is_transcript: bool) -> ChatInput:
    """Look at stdin and decide what was given. Raises UsageError when there is no question and nobody to type one."""
    if prompt is not None and not prompt.strip():
        raise UsageError("asking a question: it is empty", hint='akashic chat "what next?"')
    if prompt == "-":  # the question itself stands on stdin, as other commands read `-`
        prompt = None
        if sys.stdin is not None and sys.stdin.isatty():
            return ChatInput(_read_prompt(b""), None)
    if not _has_data():
        if prompt is None and not (sys.stdin is not None and sys.stdin.isatty()):
            raise UsageError(
                "chatting: there is neither a question nor a terminal to type one", hint='akashic chat "what next?"'
            )
        return ChatInput(prompt, None)
    head = sys.stdin.buffer.read(CHUNK_BYTES)
    if not head.strip():
        if prompt is None:
            raise UsageError("reading the question from stdin: it is empty", hint='akashic chat "what next?"')
        say("note: stdin is empty; asking without a transcript")
        return ChatInput(prompt, None)
    if prompt is not None:
        return ChatInput(prompt, Source(sys.stdin.buffer, "stdin", None, head))
    if is_transcript or head.lstrip()[:1] in (b"{", b"["):
        raise UsageError(
            "reading stdin: it looks like a transcript, and there is no question to ask about it",
            hint='… | akashic chat "what next?"; `akashic import -` only stores it',
        )
    return ChatInput(_read_prompt(head), None)


def _read_prompt(head: bytes) -> str:
    data = head + sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1 - len(head))
    if len(data) > MAX_PROMPT_BYTES:
        raise UsageError(f"reading the question from stdin: it is longer than {MAX_PROMPT_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"reading the question from stdin: it is no UTF-8 at byte {error.start}", hint="give UTF-8 text"
        ) from error


def _has_data() -> bool:
    """Tell if stdin is a pipe, a file or a socket; a terminal and /dev/null hold nothing to read ahead."""
    if sys.stdin is None or sys.stdin.isatty():
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
