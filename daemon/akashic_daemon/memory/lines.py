"""A model's choice of lines: which of a chunk's clauses are kept. It writes numbers only, so it can't invent anything.

What it names comes first, the room that this leaves goes to the other clauses by their worth without a model, and as much is
kept as without one: a poor choice costs little. What is pinned stays anyway. An answer that only counts is no choice, nor is
one whose lines say less, by their worth, than those that it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from akashic_daemon.memory.extract import Weighed, joined
from akashic_daemon.memory.reconcile import Outcome, Rejected, Task, composed

SYSTEM = (
    "You keep the notes of a conversation. From its numbered lines, choose those that a note has to keep so that "
    "questions can be answered later: who did, has, likes, plans or thinks what, and when, where and with whom. Leave out "
    "courtesies, and what another line says too. In `keep`, list the numbers of the lines to keep."
)
_COUNTING = 8
"""So many numbers at equal steps are counting, not choosing; and so many lines of less than the usual worth are no accident."""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")

    keep: tuple[int, ...]


def free(task: Task) -> list[Weighed]:
    """Return the clauses that may go, in order: a model knows them by their place, from 1."""
    return [clause for clause in task.clauses if not clause.is_pinned]


def schema(task: Task) -> dict[str, Any]:
    """Return what an answer has to be; it names at most half of the lines."""
    count = len(free(task))
    number = {"type": "integer", "minimum": 1, "maximum": count}
    keep = {"type": "array", "items": number, "minItems": 1, "maxItems": max(1, count // 2)}
    return {"type": "object", "properties": {"keep": keep}, "required": ["keep"], "additionalProperties": False}


def question(task: Task) -> str:
    """Return the clauses, each on a line, those that may go with a number; a speaker's name stands where it changes."""
    return "\n".join(_shown(task))


def _shown(task: Task) -> Iterator[str]:
    number, turn = 0, -1
    for clause in task.clauses:
        if clause.turn != turn:
            turn = clause.turn
            yield f"{task.turns[turn].speaker}:"
        if not clause.is_pinned:
            number += 1
        yield f"- {clause.text}" if clause.is_pinned else f"{number}. {clause.text}"


def checked(text: str, tokens: int, task: Task, name: str) -> Outcome | Rejected:
    """Return what a model's answer leaves of the chunk, or why it is none."""
    clauses = free(task)
    try:
        answer = _Answer.model_validate_json(text.strip())
    except ValidationError as error:
        return Rejected(f"its answer is no JSON for the schema: {error.errors()[0]['msg']}", tokens)
    numbers = sorted({number for number in answer.keep if 1 <= number <= len(clauses)})
    if not numbers:
        return Rejected("it names no line that there is", tokens)
    if len(numbers) == len(clauses):
        return Rejected("it names every line, which is no choice", tokens)
    if (told := _counted(numbers)) is not None:
        return Rejected(f"it names {told}, which is counting and no choice", tokens)
    if len(numbers) >= _COUNTING and fmean(clauses[n - 1].worth for n in numbers) < fmean(c.worth for c in clauses):
        return Rejected("the lines that it names say less than those that it leaves out", tokens)
    text, rho = composed(task.turns, left(task, numbers))
    return Outcome(text, rho, task.extractive.records, name, tokens)


def left(task: Task, numbers: Sequence[int]) -> dict[int, str]:
    """Return what a choice of lines leaves of the turns, by their numbers in the chunk; of no lines: what worth alone does."""
    clauses = free(task)
    first = {id(clauses[number - 1]) for number in numbers}
    ranked = sorted(task.clauses, key=lambda c: (not c.is_pinned, id(c) not in first, -c.worth))
    room_chars, kept = task.room_chars, set[int]()
    for clause in ranked:
        if clause.is_pinned or clause.cost_chars <= room_chars:
            kept.add(id(clause))
            room_chars -= clause.cost_chars
    return {**task.dense, **joined(clause for clause in task.clauses if id(clause) in kept)}


def _counted(numbers: Sequence[int]) -> str | None:
    steps = {after - before for before, after in pairwise(numbers)}
    if len(numbers) < _COUNTING or len(steps) != 1:
        return None
    step = "each one" if steps == {1} else f"one in {steps.pop()}"
    return f"{step} of the lines {numbers[0]} to {numbers[-1]}"
