"""A model's say in the order of what a search found: only of the first MOST, and only when its answer holds water.

Nothing is lost by it: what it doesn't name follows in its own order, and an answer that isn't one leaves all as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from akashic_daemon.errors import AkashicError
from akashic_daemon.memory.answers import Found
from akashic_daemon.memory.compactors import Asked, dated

MOST = 20
"""So many of the first are shown to the model."""
LIMIT_S = 60.0
_MOST_CHARS = 600
_MOST_ANSWER_TOKENS = 160

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"best": {"type": "array", "items": {"type": "integer"}}},
    "required": ["best"],
    "additionalProperties": False,
}
_SYSTEM = (
    "Below stand a question and numbered turns of earlier conversations. In `best`, list the numbers of the turns that "
    "help to answer the question, the most helpful first. Leave out those that don't help."
)


@dataclass(frozen=True, slots=True)
class Reranked:
    """What was found, in its new order. problem: why it is the old one; tokens: what the model read and wrote."""

    found: tuple[Found, ...]
    tokens: int = 0
    problem: str = ""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")

    best: tuple[int, ...]


async def rerank(model: Asked, question: str, found: Sequence[Found], *, limit_s: float = LIMIT_S) -> Reranked:
    """Ask a model which of the first turns help to answer a question, and put these first. Never raises for a model."""
    first, rest = tuple(found[:MOST]), tuple(found[MOST:])
    if len(first) < 2:
        return Reranked(tuple(found))
    try:
        async with asyncio.timeout(limit_s):
            reply = await model.ask(_SYSTEM, asked(question, first), SCHEMA, _MOST_ANSWER_TOKENS)
    except TimeoutError:
        return Reranked(tuple(found), problem=f"{model.name} gave no answer in {limit_s:.0f} s")
    except AkashicError as error:
        return Reranked(tuple(found), problem=f"{model.name}: {error.message}")
    try:
        best = _Answer.model_validate_json(reply.text.strip()).best
    except ValidationError as error:
        told = error.errors()[0]["msg"]
        return Reranked(tuple(found), reply.tokens, f"{model.name}: its answer is no JSON for the schema: {told}")
    if not all(1 <= number <= len(first) for number in best):
        return Reranked(tuple(found), reply.tokens, f"{model.name}: it names turns that it wasn't shown")
    order = list(dict.fromkeys([*(number - 1 for number in best), *range(len(first))]))
    return Reranked((*(first[number] for number in order), *rest), reply.tokens)


def asked(question: str, first: Sequence[Found]) -> str:
    """Return what the model reads: the question, and a line for each turn; its length is bounded."""
    lines = [
        f"{number}. {dated(one.turn)}{one.turn.speaker}: {' '.join(one.turn.text[:_MOST_CHARS].split())}"
        for number, one in enumerate(first, 1)
    ]
    return "\n".join([f"Question: {question[:_MOST_CHARS]}", "", "Turns:", *lines])
