"""Which reader knows which format, and how a reader is fed without one bad record ending it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from akashic_daemon.errors import TranscriptError
from akashic_daemon.transcript.atif import AtifReader
from akashic_daemon.transcript.claude_code import ClaudeCodeReader
from akashic_daemon.transcript.codex import CodexReader
from akashic_daemon.transcript.content import storable, without_lone_surrogates
from akashic_daemon.transcript.item import Imported, Item, Problem, Reader, Record
from akashic_daemon.transcript.mini_swe_agent import MiniSweAgentReader
from akashic_daemon.transcript.openai_runs import OpenAIReader
from akashic_daemon.transcript.openhands import OpenHandsReader
from akashic_daemon.transcript.swe_agent import SweAgentReader

READERS: dict[str, Callable[[], Reader]] = {
    "claude-code": ClaudeCodeReader,
    "codex": CodexReader,
    "swe-agent": SweAgentReader,
    "mini-swe-agent": MiniSweAgentReader,
    "openhands": OpenHandsReader,
    "atif": AtifReader,
    "openai": OpenAIReader,
    "akashic": lambda: OpenAIReader("akashic"),
}
"""By the name of the format."""


def fed(reader: Reader, record: Record) -> Iterator[Item]:
    """Feed a record; what the reader can't use becomes a Problem."""
    try:
        yield from reader.feed(record)
    except TranscriptError as error:
        where = "" if record.line is not None or record.alone else f"element {record.index}: "
        yield Problem(where + error.message, record.line)
    except RecursionError:
        yield Problem("nested too deeply", record.line)


def storable_item(item: Imported) -> Imported:
    """Return the item without what no file can hold."""
    return replace(item, conversation=without_lone_surrogates(item.conversation), message=storable(item.message))
