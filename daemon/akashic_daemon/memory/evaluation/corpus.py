"""Conversations with questions, read from files of LoCoMo's shape.

A file is a list of {"conversation": {"session_1": [{"speaker", "dia_id", "text"}, …], "session_1_date_time": …},
"qa": [{"question", "evidence": [dia_id, …], "category"}, …]}. Questions without evidence, and those of category 5, whose
answer isn't there, are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from akashic_daemon.errors import TranscriptError
from akashic_daemon.memory.memory import Said

UNANSWERABLE = 5
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}

_SESSION = re.compile(r"session_(\d+)\Z")
_REFERENCE = re.compile(r"D\d+:\d+")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the references of the turns that answer it. answer: in words, empty when the file has none."""

    text: str
    evidence: frozenset[str]
    category: int
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Sessions in order, each with what was said, and the questions about them."""

    name: str
    sessions: tuple[tuple[str, tuple[Said, ...]], ...]
    questions: tuple[Question, ...]

    @property
    def turn_count(self) -> int:
        """How many turns it has."""
        return sum(len(said) for _, said in self.sessions)


def read(paths: Sequence[Path]) -> list[Conversation]:
    """Read files. Raises TranscriptError when one can't be read, has another shape, or no question."""
    return [conversation for path in paths for conversation in _read(path)]


def _read(path: Path) -> Iterator[Conversation]:
    doing = f"reading the conversations {path}"
    hint = "a list of conversations as LoCoMo's file has them"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TranscriptError(f"{doing}: {error}", hint=hint) from error
    for number, item in enumerate(content if isinstance(content, list) else [content]):
        try:
            yield _conversation(f"{path.stem}-{number}", item)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise TranscriptError(f"{doing}: item {number}: {error!r}", hint=hint) from error


def _conversation(name: str, item: dict[str, Any]) -> Conversation:
    talk = item["conversation"]
    numbers = sorted(int(found[1]) for key in talk if (found := _SESSION.match(key)))
    sessions = tuple((f"session_{n}", _said(talk[f"session_{n}"], talk.get(f"session_{n}_date_time"))) for n in numbers)
    known = {said.reference for _, turns in sessions for said in turns}
    questions = []
    for asked in item["qa"]:
        evidence = frozenset(_REFERENCE.findall(" ".join(asked.get("evidence") or ()))) & known
        if evidence and asked["category"] != UNANSWERABLE:
            answer = str(asked.get("answer") or "")
            questions.append(Question(str(asked["question"]), evidence, int(asked["category"]), answer))
    if not questions:
        raise ValueError("no question with evidence")
    return Conversation(name, sessions, tuple(questions))


def _said(turns: Sequence[dict[str, Any]], date: str | None) -> tuple[Said, ...]:
    at_s = None if date is None else _time(date)
    return tuple(Said(t["speaker"], _text(t), t["dia_id"], at_s) for t in turns)


def _text(turn: dict[str, Any]) -> str:
    caption = turn.get("blip_caption")
    return str(turn["text"]) + (f" [shares {caption}]" if caption else "")


def _time(date: str) -> float:
    return datetime.strptime(date, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp()
