"""Recorded runs as episodes: what an agent sends, how long its answer was, and how long its tool then took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from akashic_cli.bench.transcripts import JsonObject, Run

_SENT = ("role", "content", "tool_calls", "tool_call_id", "name")
_CHARS_PER_TOKEN = 3.6


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: how many messages precede it, how long the agent waits before it, how long the recorded answer is."""

    history: int
    wait_s: float
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Episode:
    """One run of an agent."""

    name: str
    messages: tuple[JsonObject, ...]
    turns: tuple[Turn, ...]
    timed_turns: int
    """Turns whose wait the record gives."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How recorded times become waits: `default_s` where there are none; none is longer than `most_s`; all divided by `speedup`."""

    default_s: float = 1.0
    most_s: float = 60.0
    speedup: float = 1.0

    def wait_s(self, recorded_s: float | None) -> float:
        """Return how long to wait."""
        return min(self.default_s if recorded_s is None else recorded_s, self.most_s) / self.speedup


def episode_of(run: Run, waits: Waits, *, most_turns: int | None, most_answer_tokens: int) -> Episode:
    """Return a run as an episode; `event_time_s` of `session export` gives the tools' times."""
    answers = [i for i, m in enumerate(run.messages) if i and m["role"] == "assistant"][:most_turns]
    turns, timed = [], 0
    for number, answer in enumerate(answers):
        recorded = _gap(run.messages, answers[number - 1], answer) if number else 0.0
        timed += number > 0 and recorded is not None
        tokens = round(_characters(run.messages[answer]) / _CHARS_PER_TOKEN)
        wait_s = waits.wait_s(recorded) if number else 0.0
        turns.append(Turn(answer, wait_s, max(1, min(most_answer_tokens, tokens))))
    sent = tuple({key: m[key] for key in _SENT if m.get(key) is not None} for m in run.messages)
    return Episode(run.name, sent, tuple(turns), timed)


def _gap(messages: Sequence[JsonObject], earlier: int, answer: int) -> float | None:
    """Return the time between an answer and what came back, None when the record doesn't say."""
    if answer - earlier < 2:
        return None
    said, came = (_time(messages[at]) for at in (earlier, answer - 1))
    return came - said if said is not None and came is not None and came >= said else None


def _time(message: JsonObject) -> float | None:
    value: Any = message.get("event_time_s")
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _characters(message: JsonObject) -> int:
    calls = message.get("tool_calls") or ()
    return len(str(message.get("content") or "")) + sum(len(str(call)) for call in calls)
