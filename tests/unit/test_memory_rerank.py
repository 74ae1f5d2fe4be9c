"""A model's say in the order of results: of the first ones, when its answer holds water, and never a loss."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.errors import BadRequest, EngineError
from akashic_daemon.memory.answers import Found
from akashic_daemon.memory.compactors import Reply
from akashic_daemon.memory.memory import Said
from akashic_daemon.memory.rerank import MOST, Reranked, asked, rerank
from akashic_daemon.memory_service.service import MemoryService
from akashic_daemon.paths import find_paths
from akashic_daemon.store.memory.rows import Turn
from awaited import awaited
from hashed_words import HashedWords


class Canned:
    """A model whose answer is known beforehand; None: it never comes."""

    name = "canned"

    def __init__(self, answer: str | Exception | None) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def ask(self, system: str, question: str, schema: Mapping[str, Any], max_tokens: int) -> Reply:
        self.asked.append(question)
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return Reply(str(self.answer), 123)


def found(count: int) -> list[Found]:
    return [
        Found(Turn(n, "user", "s", None, None, "Ann", f"text {n}", 1.6e9, 3), 9.0 - n, ()) for n in range(1, count + 1)
    ]


def ids(result: Reranked | Sequence[Found]) -> list[int]:
    return [one.turn.id for one in (result.found if isinstance(result, Reranked) else result)]


def best(*numbers: int) -> str:
    return json.dumps({"best": numbers})


@awaited
async def test_what_the_model_names_comes_first_and_the_rest_follows_in_its_own_order() -> None:
    result = await rerank(Canned(best(3, 1, 3)), "q", found(5))
    assert ids(result) == [3, 1, 2, 4, 5]
    assert (result.tokens, result.problem) == (123, "")


@awaited
async def test_only_the_first_twenty_are_shown_and_moved() -> None:
    model = Canned(best(20))
    result = await rerank(model, "q", found(MOST + 3))
    assert ids(result) == [20, *range(1, 20), 21, 22, 23]
    assert "20. [2020-09-13] Ann: text 20" in model.asked[0]
    assert "text 21" not in model.asked[0]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("I think the first", "no JSON"),
        ('{"best": ["x"]}', "no JSON"),
        (best(0), "wasn't shown"),
        (best(6), "wasn't shown"),
        (EngineError("asking canned: it is gone"), "it is gone"),
        (None, "no answer"),
    ],
)
@awaited
async def test_any_other_answer_leaves_the_order_and_says_why(answer: str | Exception | None, problem: str) -> None:
    result = await rerank(Canned(answer), "q", found(5), limit_s=0.05)
    assert ids(result) == [1, 2, 3, 4, 5]
    assert problem in result.problem


@awaited
async def test_one_result_needs_no_model() -> None:
    model = Canned(best(1))
    assert ids(await rerank(model, "q", found(1))) == [1]
    assert model.asked == []


def test_what_the_model_reads_is_bounded() -> None:
    long = [Found(Turn(1, "user", "s", None, None, "Ann", "word " * 900, None, 3), 1.0, ())] * MOST
    assert len(asked("why " * 9000, long)) < 700 * (MOST + 1)


@awaited
async def test_the_service_counts_the_models_tokens_and_refuses_without_a_model(tmp_path: Path) -> None:
    async def hashed() -> HashedWords:
        return HashedWords()

    place = find_paths({"AKASHIC_HOME": str(tmp_path)})
    memory = MemoryService(place, hashed, model=Canned(best(2)))
    await memory.add("user", [Said("Ann", "the parrot eats mangoes", "1"), Said("Ann", "the parrot sleeps", "2")])
    hits = await memory.search("parrot")
    result = await memory.rerank("parrot", hits)
    assert ids(result) == ids(hits)[::-1]
    assert memory.worker.model_tokens == 123
    await memory.close()
    with pytest.raises(BadRequest, match="no model is set"):
        await MemoryService(place, hashed).rerank("parrot", hits)
