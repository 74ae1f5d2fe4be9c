"""What a chat does with long-term memory, in words: at its start, and after each answer."""

from __future__ import annotations

from collections.abc import Sequence

from akashic_cli.render.units import count
from akashic_daemon.config import load
from akashic_daemon.errors import UsageError
from akashic_daemon.paths import find_paths
from akashic_daemon.protocol.memory import MemoryAsk
from akashic_daemon.protocol.native import Recalled

_NAMED_SOURCES = 5
_NAMED_TURNS = 6


def memory_ask(memory: bool | None, namespace: str | None) -> bool | MemoryAsk | None:
    """Return what a turn says of memory; None leaves it to the settings. Raises UsageError for a contradiction."""
    if namespace is None:
        return memory
    if memory is False:
        raise UsageError("chatting with --no-memory and --namespace: they contradict each other", hint="leave out one")
    return MemoryAsk.model_validate({"namespaces": [namespace]})


def start_line(ask: bool | MemoryAsk | None) -> str:
    """Return what a person is told of memory when a session begins."""
    settings = load(find_paths().config_file).config.memory
    if ask is False or (ask is None and not settings.chat):
        return "memory is off for this session"
    named = ask.namespaces if isinstance(ask, MemoryAsk) else None
    return f"memory is on ({', '.join(named or [settings.namespace])}); --no-memory keeps a session out of it"


def memory_lines(told: Recalled | None) -> list[str]:
    """Return what memory did for a turn, with the sources by name."""
    if told is None:
        return []
    lines = []
    if told.remembered:
        lines.append(f"memory: {count(told.remembered)} turns that no longer fit the window were remembered")
    if told.turns:
        turns_of: dict[str, list[str]] = {}
        for turn in told.turns:
            turns_of.setdefault(turn.source, []).append(turn.turn)
        named = [f"{source} ({_listed(turns)})" for source, turns in list(turns_of.items())[:_NAMED_SOURCES]]
        more = f" and {len(turns_of) - _NAMED_SOURCES} more" if len(turns_of) > _NAMED_SOURCES else ""
        lines.append(
            f"memory: recalled {count(len(told.turns))} turns ({count(told.tokens)} tokens) "
            f"from {', '.join(named)}{more}; `akashic mem history {told.turns[0].turn}` shows one"
        )
    return lines


def _listed(turns: Sequence[str]) -> str:
    return ", ".join(turns) if len(turns) <= _NAMED_TURNS else f"{', '.join(turns[:_NAMED_TURNS])}, …"
