"""mini-swe-agent: messages whose commands stand in a fenced block of the assistant's text.

A command's output comes back with the role user. It is a tool's result if the message before it holds exactly one
command; after none or several the agent's complaint follows, which is the user's turn. Newer files wrap the list in
`{"messages", "info", "trajectory_format"}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.transcript.content import as_dict, as_text
from akashic_daemon.transcript.item import Imported, Item, Record
from akashic_daemon.transcript.openai_runs import OpenAIReader

_COMMAND = re.compile(r"^```(?:bash|mswea_bash_command)[ \t]*\r?\n.*?^```", re.M | re.S)
_OUTPUT = re.compile(r"<returncode>|Observation:")


def has_command(text: str) -> bool:
    """Tell whether an assistant's text makes exactly one command run."""
    return len(_COMMAND.findall(text)) == 1


def looks_like_mini(messages: list[Any]) -> bool:
    """Tell whether a list of messages holds a command followed by its output."""
    for said, seen in pairwise(messages):
        spoken, output = as_dict(said), as_dict(seen)
        pair = (spoken.get("role"), output.get("role")) == ("assistant", "user")
        if pair and has_command(as_text(spoken.get("content"))) and _OUTPUT.match(as_text(output.get("content"))):
            return True
    return False


class MiniSweAgentReader:
    """Reads a run, as a list of messages or wrapped."""

    def __init__(self) -> None:
        self._messages = OpenAIReader("mini-swe-agent")
        self._acted: dict[str, bool] = {}

    def feed(self, record: Record) -> Iterator[Item]:
        """Take a message or a run."""
        for item in self._messages.feed(record):
            if isinstance(item, Imported):
                acted = self._acted.get(item.conversation, False)
                self._acted[item.conversation] = _acts(item.message)
                if acted and item.message.role is Role.USER:
                    yield replace(item, message=replace(item.message, role=Role.TOOL))
                    continue
            yield item

    def finish(self) -> Iterator[Item]:
        """Nothing is held back."""
        yield from ()


def _acts(message: Message) -> bool:
    return message.role is Role.ASSISTANT and not message.tool_calls and has_command(message.content)
