"""Prompts of the measured daemon: how long they are, what they share, and how not to share it."""

from __future__ import annotations

from collections.abc import Sequence

from akashic_cli.bench.own_daemon import OwnDaemon
from akashic_cli.bench.replay import Player
from akashic_cli.bench.transcripts import JsonObject


def salted(messages: list[JsonObject], salt: str) -> list[JsonObject]:
    """Return messages that share no beginning with those of another salt."""
    content = messages[0].get("content") or ""
    mark = f"[{salt}] "
    salty = mark + content if isinstance(content, str) else [{"type": "text", "text": mark}, *content]
    return [{**messages[0], "content": salty}, *messages[1:]]


def length(daemon: OwnDaemon, messages: list[JsonObject]) -> int:
    """Return about how many tokens messages have: their texts, and what a template writes around each."""
    return daemon.count_tokens("\n".join(_text(message) for message in messages)) + 8 * len(messages)


def _text(message: JsonObject) -> str:
    calls = " ".join(f"{c['function']['name']} {c['function']['arguments']}" for c in message.get("tool_calls") or ())
    return f"{message['role']} {message.get('content') or ''} {calls}"


def shared_tokens(daemon: OwnDaemon, players: Sequence[Player]) -> int:
    """Return about how many tokens runs have in common with an earlier one, at their beginnings."""
    total = 0
    for number, player in enumerate(players):
        mine = player.requests[-1]
        common = max((_common(mine, other.requests[-1]) for other in players[:number]), default=0)
        total += length(daemon, mine[:common]) if common else 0
    return total


def _common(one: Sequence[JsonObject], other: Sequence[JsonObject]) -> int:
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
