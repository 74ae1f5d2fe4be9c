"""Compactors behind one contract: without a model, and with one, whose answer counts only when it holds water.

A model writes facts, each with the turns it rests on. An answer that isn't JSON for the schema, cites nothing, tells what
the turns don't say, or is longer than they are, is rejected, and so is one that doesn't come in time: then what comes out
without a model is kept. Identifiers, numbers and lasting wishes that no fact has are kept beside the facts, word for word.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from akashic_daemon.errors import AkashicError
from akashic_daemon.memory import lines
from akashic_daemon.memory.recalled import day
from akashic_daemon.memory.reconcile import Outcome, Rejected, Task
from akashic_daemon.memory.retold import EXTRACTIVE
from akashic_daemon.memory.statements import stated
from akashic_daemon.memory.words import terms
from akashic_daemon.store.memory.rows import NewRecord, Turn

logger = logging.getLogger("akashic.memory")

ANSWER_LIMIT_S = 300.0
MOST_ANSWER_TOKENS = 1024
FACTS_TRIED = 3
"""So many chunks in a row a model may fail at facts before it is asked for lines only, until the next start."""
_LEAST_PROSE = 0.5
"""Chunks of less prose are code, logs and tables, which a model would only shorten by losing some of it."""
_RELATED_CHARS = 1200
_MOST_FACT_CHARS = 400
_LEAST_GROUNDED_TERMS = 0.6
_MOST_UNGROUNDED = 0.25
_PRECISE = re.compile(r"[^\W_]*\d[\w./:-]*")


class Compactor(Protocol):
    """What makes an outcome of a task; never raises for what a model does."""

    @property
    def name(self) -> str:
        """What `mem stats` and the versions call it."""

    async def compact(self, task: Task) -> Outcome | Rejected:
        """Return what becomes of a chunk, or why there is nothing. May be cancelled at any time."""


class Extractive:
    """No model: what `prepare` computed. Deterministic."""

    name = EXTRACTIVE

    async def compact(self, task: Task) -> Outcome | Rejected:
        """Return what comes out without a model."""
        return task.extractive


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered, how many tokens were read and written for it, and whether it was cut at the most allowed."""

    text: str
    tokens: int
    is_cut: bool = False


class Asked(Protocol):
    """A model that can be asked."""

    @property
    def name(self) -> str:
        """What the versions that it wrote are marked with."""

    async def ask(self, system: str, question: str, schema: Mapping[str, Any], max_tokens: int) -> Reply:
        """Return the answer, held to the schema if the model can be. Raises AkashicError."""


class ModelCompactor:
    """A model's facts, or lines that it chooses, checked; code, logs and tables are left to the extractive compactor."""

    def __init__(self, model: Asked, *, limit_s: float = ANSWER_LIMIT_S) -> None:
        self._model = model
        self._limit_s = limit_s
        self._failed = 0
        """So many chunks in a row it failed at facts."""

    @property
    def name(self) -> str:
        """The model's name, and that it only chooses lines if that is so."""
        return self._chooser if self._failed >= FACTS_TRIED else self._model.name

    @property
    def _chooser(self) -> str:
        return f"{self._model.name}, choosing lines"

    async def compact(self, task: Task) -> Outcome | Rejected:
        """Ask the model for facts, and for lines if these don't hold water; check what it says."""
        if task.prose_share < _LEAST_PROSE:
            return task.extractive
        refused: Rejected | None = None
        if self._failed < FACTS_TRIED:
            reply = await self._asked(_SYSTEM, question(task), SCHEMA)
            if isinstance(reply, Rejected):
                return reply
            facts = checked(reply, task, self._model.name)
            if isinstance(facts, Outcome):
                self._failed = 0
                return facts
            self._note_failure(facts)
            refused = facts
        return await self._choose(task, refused)

    async def _choose(self, task: Task, refused: Rejected | None) -> Outcome | Rejected:
        """Ask the model for lines; refused: what became of its facts."""
        spent = refused.tokens if refused is not None else 0
        if len(lines.free(task)) < 2:
            return refused or task.extractive  # there is nothing to choose from
        reply = await self._asked(lines.SYSTEM, lines.question(task), lines.schema(task))
        chosen: Outcome | Rejected
        if isinstance(reply, Rejected):
            chosen = reply
        elif reply.is_cut:
            chosen = Rejected(f"{self._model.name}: {_CUT}", reply.tokens)
        else:
            chosen = lines.checked(reply.text, reply.tokens, task, self._chooser)
            if isinstance(chosen, Rejected):
                chosen = replace(chosen, reason=f"{self._model.name}, choosing lines: {chosen.reason}")
        if isinstance(chosen, Rejected) and refused is not None:
            chosen = replace(chosen, reason=f"{refused.reason}; {chosen.reason}")
        return replace(chosen, tokens=chosen.tokens + spent)

    async def _asked(self, system: str, text: str, schema: Mapping[str, Any]) -> Reply | Rejected:
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._model.ask(system, text, schema, MOST_ANSWER_TOKENS)
        except TimeoutError:
            return Rejected(f"{self._model.name} gave no answer in {self._limit_s:.0f} s")
        except AkashicError as error:
            return Rejected(f"{self._model.name}: {error.message}")

    def _note_failure(self, facts: Rejected) -> None:
        self._failed += 1
        if self._failed == FACTS_TRIED:
            logger.warning(
                "%d chunks in a row it was of no use to ask for facts, so lines to keep are asked for from now on: %s",
                self._failed, facts.reason,
            )  # fmt: skip


# -- what is asked ---------------------------------------------------------------------------------------------

_TEXT = {"type": "string"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "facts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "text": _TEXT,
                    "turns": {"type": "array", "items": {"type": "integer"}},
                    "subject": _TEXT,
                    "slot": _TEXT,
                    "value": _TEXT,
                },
                "required": ["text", "turns", "subject", "slot", "value"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["facts"],
    "additionalProperties": False,
}

_SYSTEM = (
    "You write the long-term memory of a conversation. From the numbered turns, write every fact that may be asked for "
    "later as one short sentence in which each person and thing is named. Copy names, numbers, dates, paths and "
    "identifiers exactly. In `turns`, list the numbers of the turns that say it. Where a fact gives an attribute a value, "
    "fill `subject`, `slot` and `value` (for Ann lives in Lyon: Ann, home, Lyon); else leave them empty. Write nothing "
    "that the turns don't say, and nothing that is only courtesy. What stands under Known is there to be understood by, "
    "not to be repeated."
)


def question(task: Task) -> str:
    """Return what a model is asked about a chunk; its length is bounded by the chunk's and five short texts."""
    known = [other.text[:_RELATED_CHARS] for other in task.related]
    lines = [f"{number}. {dated(turn)}{turn.speaker}: {turn.text}" for number, turn in enumerate(task.turns, 1)]
    return "\n".join([*(["Known:", *known, ""] if known else []), "Turns:", *lines])


def dated(turn: Turn) -> str:
    """Return the day on which a turn was said, in brackets; nothing when that isn't known."""
    date = day(turn.event_at_s)
    return f"[{date}] " if date else ""


# -- what is taken ---------------------------------------------------------------------------------------------


class _Fact(BaseModel):
    model_config = ConfigDict(extra="ignore")

    text: str
    turns: tuple[int, ...]
    subject: str = ""
    slot: str = ""
    value: str = ""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")

    facts: tuple[_Fact, ...]


_CUT = f"its answer was cut off at {MOST_ANSWER_TOKENS:,} tokens"


def checked(reply: Reply, task: Task, name: str) -> Outcome | Rejected:
    """Return what a model's facts make of the chunk, or why they are rejected."""
    if reply.is_cut:
        return Rejected(f"{name}: {_CUT}", reply.tokens)
    try:
        answer = _Answer.model_validate_json(reply.text.strip())
    except ValidationError as error:
        first = error.errors()[0]
        return Rejected(f"{name}: its answer is no JSON for the schema: {first['msg']}", reply.tokens)
    facts = [fact for fact in answer.facts if fact.text.strip()]
    good = [(fact, cited) for fact in facts if (cited := _cited(fact, task.turns)) and _is_grounded(fact, cited)]
    if not good:
        return Rejected(f"{name}: of its {len(facts)} facts none is in the turns that it names", reply.tokens)
    if len(facts) - len(good) > _MOST_UNGROUNDED * len(facts):
        why = f"{name}: {len(facts) - len(good)} of its {len(facts)} facts aren't in the turns that they name"
        return Rejected(why, reply.tokens)
    text = _text(good, task)
    raw_chars = sum(len(turn.speaker) + 2 + len(turn.text) for turn in task.turns)
    if len(text) >= raw_chars:
        return Rejected(f"{name}: its facts are longer than what was said", reply.tokens)
    return Outcome(text, len(text) / raw_chars, tuple(_records(good, task)), name, reply.tokens)


_Good = Sequence[tuple[_Fact, tuple[Turn, ...]]]


def _cited(fact: _Fact, turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return the turns that a fact names; none when one of them doesn't exist."""
    if not all(1 <= number <= len(turns) for number in fact.turns):
        return ()
    return tuple(turns[number - 1] for number in sorted(set(fact.turns)))


def _is_grounded(fact: _Fact, cited: Sequence[Turn]) -> bool:
    """Tell if most of a fact's words, and all of its numbers and the like, stand in what it names."""
    if len(fact.text) > _MOST_FACT_CHARS:
        return False
    said = " ".join(f"{dated(turn)}{turn.speaker} {turn.text}" for turn in cited)
    if not all(precise.rstrip(".:/-") in said for precise in _PRECISE.findall(fact.text)):
        return False
    own = set(terms(fact.text))
    return bool(own) and len(own & set(terms(said))) >= _LEAST_GROUNDED_TERMS * len(own)


def _text(good: _Good, task: Task) -> str:
    """Return the facts, and what no compactor may lose and none of them has."""
    lines = [" ".join(fact.text.split()) for fact, _ in good]
    told = set(terms("\n".join(lines)))
    speakers = {turn.id: turn.speaker for turn in task.turns}
    for turn_id, text in task.pinned:
        if not told.issuperset(terms(text)):
            lines.append(f"{speakers[turn_id]}: {text}")
    return "\n".join(lines)


def _records(good: _Good, task: Task) -> list[NewRecord]:
    """Return the statements that were found without a model, and the facts about anything else."""
    records = list(task.extractive.records)
    known = {(record.subject, record.slot) for record in records}
    for fact, cited in good:
        text = " ".join(fact.text.split())
        times = [turn.event_at_s for turn in cited if turn.event_at_s is not None]
        at_s = max(times, default=None)
        ids = tuple(turn.id for turn in cited)
        if not (fact.subject.strip() and fact.slot.strip() and fact.value.strip()):
            records.append(NewRecord(text, ids, event_at_s=at_s))
            continue
        s = stated(fact.subject, fact.slot, fact.value, text)
        if (s.subject, s.slot) not in known:
            records.append(NewRecord(text, ids, s.subject, s.slot, at_s, s.value, s.is_negated, s.changes))
    return records
