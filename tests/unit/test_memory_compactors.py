"""What a model makes of a chunk counts only when it holds water; what it must not lose is kept beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from akashic_daemon.errors import EngineError
from akashic_daemon.memory import chunks, compactors, ingest, lines, reconcile
from akashic_daemon.memory.asking import RemoteModel
from akashic_daemon.memory.compactors import Extractive, ModelCompactor, Reply
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.memory.reconcile import Outcome, Rejected, Task
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock
from hashed_words import HashedWords

DAY = 1_600_000_000.0
SAID = (
    Said("Ann", "Well, you know, my brother Marco restores violins in Cremona these days, isn't that great?", "1", DAY),
    Said("Bob", "Oh wow, that is really so nice to hear, thanks a lot for telling me about all of that!", "2", DAY),
    Said("Ann", "By the way, the key of the workshop is in src/keys/box_7.txt, and I live in Lyon.", "3", DAY),
)


class Canned:
    """A model whose answer is known beforehand."""

    name = "canned"

    def __init__(self, answer: str | Exception, lines: str = "", *, is_cut: bool = False) -> None:
        self.answer, self.lines, self.is_cut = answer, lines, is_cut
        self.asked: list[str] = []
        self.schemas: list[Mapping[str, Any]] = []

    async def ask(self, system: str, question: str, schema: Mapping[str, Any], max_tokens: int) -> Reply:
        self.asked.append(question)
        self.schemas.append(schema)
        if isinstance(self.answer, Exception):
            raise self.answer
        return Reply(self.answer if "facts" in schema["properties"] else self.lines, 123, self.is_cut)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    store = open_memory_store(tmp_path / "memory.sqlite", SystemClock())
    yield Memory(store, HashedWords())
    store.close()


@pytest.fixture
def task(memory: Memory) -> Task:
    return task_of(memory, *SAID)


def task_of(memory: Memory, *said: Said) -> Task:
    ingest.remember(memory, "user", "s", said)
    (chunk,) = chunks.seal(memory, "user")
    return reconcile.prepare(memory, chunk)


def fact(text: str, *turns: int, subject: str = "", slot: str = "", value: str = "") -> dict[str, Any]:
    return {"text": text, "turns": list(turns), "subject": subject, "slot": slot, "value": value}


def answer(*facts: dict[str, Any]) -> str:
    return json.dumps({"facts": facts})


VIOLINS = fact("Ann's brother Marco restores violins in Cremona.", 1, subject="Marco", slot="work", value="violins")


def compacted(task: Task, text: str | Exception) -> Outcome | Rejected:
    return asyncio.run(ModelCompactor(Canned(text)).compact(task))


def reason(task: Task, text: str | Exception) -> str:
    outcome = compacted(task, text)
    assert isinstance(outcome, Rejected)
    return outcome.reason


def test_the_extractive_compactor_gives_what_needs_no_model(task: Task) -> None:
    assert asyncio.run(Extractive().compact(task)) is task.extractive


def test_facts_become_records_with_the_turns_that_they_rest_on(task: Task) -> None:
    outcome = compacted(task, answer(VIOLINS))
    assert isinstance(outcome, Outcome)
    assert (outcome.made_by, outcome.tokens) == ("canned", 123)
    by_slot = {record.slot: record for record in outcome.records}
    assert by_slot["work"].turn_ids == (task.turns[0].id,)
    assert by_slot["work"].event_at_s == DAY
    assert "home" in by_slot  # what is found without a model stays
    assert outcome.rho < 1


def test_what_no_compactor_may_lose_stands_beside_the_facts(task: Task) -> None:
    outcome = compacted(task, answer(VIOLINS))
    assert isinstance(outcome, Outcome)
    assert "src/keys/box_7.txt" in outcome.text
    assert "violins in Cremona" in outcome.text


@pytest.mark.parametrize(
    "text",
    [
        "Sure! Here are the facts:",
        "",
        "[]",
        '{"facts": 3}',
        '{"facts": [{"text": "x"}]}',
        '{"facts": [',
        "\x00",
        "null",
    ],
)
def test_what_is_no_json_for_the_schema_is_rejected(task: Task, text: str) -> None:
    assert "canned: its answer is no JSON for the schema" in reason(task, text)


def test_facts_that_are_not_in_the_turns_are_rejected(task: Task) -> None:
    invented = fact("Marco won a boat race against the king of Norway.", 1)
    assert "of its 1 facts none" in reason(task, answer(invented))
    assert "1 of its 2 facts" in reason(task, answer(VIOLINS, invented))
    assert "of its 1 facts none" in reason(task, answer(fact("Marco restores violins in Cremona since 1987.", 1)))
    assert "of its 1 facts none" in reason(task, answer(fact(VIOLINS["text"], 2)))
    assert "none" in reason(task, answer(fact(VIOLINS["text"], 9)))
    assert "none" in reason(task, answer(fact(VIOLINS["text"])))
    assert "none" in reason(task, answer())


def test_one_bad_fact_among_many_is_left_out(task: Task) -> None:
    good = [fact(f"{who} restores violins in Cremona", 1) for who in ("Marco", "brother Marco", "My brother Marco")]
    outcome = compacted(task, answer(*good, fact("Marco plays the tuba in Oslo", 1)))
    assert isinstance(outcome, Outcome)
    assert "tuba" not in outcome.text


def test_dates_that_the_model_was_shown_may_stand_in_facts(task: Task) -> None:
    outcome = compacted(task, answer(fact("On 2020-09-13 Ann said Marco restores violins in Cremona", 1)))
    assert isinstance(outcome, Outcome)


def test_facts_longer_than_what_was_said_are_rejected(task: Task) -> None:
    assert "longer than what was said" in reason(task, answer(*[VIOLINS] * 40))


def test_a_model_that_fails_or_hangs_is_rejected_and_says_why(task: Task) -> None:
    assert "no memory left" in reason(task, EngineError("no memory left"))

    class Hanging(Canned):
        async def ask(self, system: str, question: str, schema: Mapping[str, Any], max_tokens: int) -> Reply:
            await asyncio.Event().wait()
            raise AssertionError("it never ends")

    outcome = asyncio.run(ModelCompactor(Hanging(""), limit_s=0.01).compact(task))
    assert isinstance(outcome, Rejected)
    assert "no answer" in outcome.reason


def test_code_is_left_to_the_compactor_without_a_model(memory: Memory) -> None:
    task = task_of(memory, Said("tool", "def add(a, b):\n    return a + b\n\nclass Sum:\n    total = 0\n", "c"))
    model = Canned(answer(VIOLINS))
    assert asyncio.run(ModelCompactor(model).compact(task)) is task.extractive
    assert model.asked == []


def test_what_is_asked_does_not_grow_with_the_history(memory: Memory) -> None:
    for n in range(30):
        said = [Said("Ann", f"Marco {n} restores violins in Cremona, {m * n} of them", f"{n}-{m}") for m in range(20)]
        ingest.remember(memory, "user", f"s{n}", said)
        for chunk in chunks.seal(memory, "user"):
            done = reconcile.prepare(memory, chunk)
            reconcile.store(memory, done, done.extractive)
    task = task_of(memory, *SAID)
    assert len(task.related) == reconcile.MOST_RELATED
    raw = sum(len(turn.text) + 100 for turn in task.turns)
    assert len(compactors.question(task)) < raw + reconcile.MOST_RELATED * 1300


# -- a choice of lines ------------------------------------------------------------------------------------------

TALK = tuple(
    Said(("Ann", "Bob")[n % 2], f"{text} That was number {'abcdefghijkl'[n]} of them.", f"l{n}", DAY)
    for n, text in enumerate(
        (
            "Marco restores violins in Cremona with his brother.",
            "The ferry to Elba leaves from Piombino in the morning.",
            "Yuki grows wasabi behind the old mill near the river.",
            "Our neighbour paints lighthouses on driftwood in winter.",
            "The bakery at the corner closes for the whole of August.",
            "My cousin plays the accordion in a band of sailors.",
        )
    )
)


def named(*numbers: int) -> str:
    return json.dumps({"keep": numbers})


def chosen(task: Task, text: str, *, is_cut: bool = False) -> Outcome | Rejected:
    model = Canned("no facts", text, is_cut=is_cut)
    return asyncio.run(ModelCompactor(model).compact(task))


def test_a_model_without_usable_facts_is_asked_which_lines_to_keep(memory: Memory) -> None:
    task = task_of(memory, *TALK)
    model = Canned("no facts", named(2, 5, 7))
    outcome = asyncio.run(ModelCompactor(model).compact(task))
    assert isinstance(outcome, Outcome)
    assert outcome.made_by == "canned, choosing lines"
    assert outcome.tokens == 246  # both questions
    free = lines.free(task)
    assert all(free[number - 1].text in outcome.text for number in (2, 5, 7))
    assert outcome.records == task.extractive.records
    assert f"2. {free[1].text}" in model.asked[1]
    assert model.schemas[1]["properties"]["keep"]["items"] == {"type": "integer", "minimum": 1, "maximum": len(free)}


def test_whatever_lines_are_named_only_said_words_are_kept_no_more_than_without_a_model(memory: Memory) -> None:
    task = task_of(memory, *TALK, *SAID)
    said = {clause.text for clause in task.clauses}
    pinned = {text for _, text in task.pinned}
    assert pinned
    count = len(lines.free(task))
    for numbers in ([1], [count], [3, 1, 3, 99, -4], list(range(1, count)), [*range(1, count, 3), 2]):
        outcome = lines.checked(named(*numbers), 1, task, "m")
        if isinstance(outcome, Rejected):
            assert "counting" in outcome.reason
            continue
        assert len(outcome.text) <= len(task.extractive.text) * 1.15 + 40
        kept = {text for text in said if text in outcome.text}
        assert pinned <= kept
        body = outcome.text.split("\n", 1)[1] if " = " in outcome.text.split("\n")[0] else outcome.text
        rest = body
        for text in sorted(kept, key=len, reverse=True):
            rest = rest.replace(text, "")
        assert not any(word.isalpha() and len(word) > 3 for word in rest.split())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Sure! I keep line 3.", "no JSON for the schema"),
        ('{"keep": ["all"]}', "no JSON for the schema"),
        (named(), "names no line"),
        (named(0, 99), "names no line"),
        (named(*range(1, 9)), "each one of the lines 1 to 8, which is counting"),
        (named(*range(1, 17, 2)), "one in 2 of the lines 1 to 15, which is counting"),
    ],
)
def test_an_answer_that_chooses_nothing_is_rejected_with_the_reason(memory: Memory, text: str, why: str) -> None:
    task = task_of(memory, *TALK, *[Said("Ann", t.text.replace("number", "item"), f"m{t.reference}") for t in TALK])
    assert len(lines.free(task)) > 17
    outcome = chosen(task, text)
    assert isinstance(outcome, Rejected)
    assert outcome.tokens == 246
    assert "canned: its answer is no JSON for the schema" in outcome.reason  # of its facts
    assert f"canned, choosing lines: {'its answer is ' if 'JSON' in why else 'it '}" in outcome.reason
    assert why in outcome.reason


def test_lines_that_say_less_than_those_left_out_are_no_choice(memory: Memory) -> None:
    task = task_of(memory, *TALK, *[Said("Ann", t.text.replace("number", "item"), f"m{t.reference}") for t in TALK])
    free = lines.free(task)
    by_worth = sorted(range(1, len(free) + 1), key=lambda number: free[number - 1].worth)
    best, least = by_worth[-8:], by_worth[:8]
    assert isinstance(lines.checked(named(*best), 1, task, "m"), Outcome)
    outcome = lines.checked(named(*least), 1, task, "m")
    assert isinstance(outcome, Rejected)
    assert "say less than those that it leaves out" in outcome.reason
    assert isinstance(lines.checked(named(*least[:3]), 1, task, "m"), Outcome)  # so few cost little


def test_naming_every_line_is_no_choice(memory: Memory) -> None:
    task = task_of(memory, *TALK)
    outcome = lines.checked(named(*range(1, len(lines.free(task)) + 1)), 1, task, "m")
    assert isinstance(outcome, Rejected)
    assert "every line" in outcome.reason


def test_an_answer_that_was_cut_off_says_so(memory: Memory) -> None:
    outcome = chosen(task_of(memory, *TALK), named(1), is_cut=True)
    assert isinstance(outcome, Rejected)
    assert outcome.reason.count("was cut off at 1,024 tokens") == 2


def test_a_model_that_fails_at_facts_again_and_again_is_only_asked_for_lines(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    model = Canned("no facts", named(1, 4))
    compactor = ModelCompactor(model)
    task = task_of(memory, *TALK)
    for number in range(1, compactors.FACTS_TRIED + 2):
        assert compactor.name == ("canned" if number <= compactors.FACTS_TRIED else "canned, choosing lines")
        assert isinstance(asyncio.run(compactor.compact(task)), Outcome)
    assert len(model.asked) == 2 * compactors.FACTS_TRIED + 1
    assert sum("of no use to ask for facts" in record.message for record in caplog.records) == 1


def test_facts_that_hold_water_end_the_count_of_failures(memory: Memory) -> None:
    model = Canned("no facts", named(1, 4))
    compactor = ModelCompactor(model)
    task, other = task_of(memory, *SAID), task_of(memory, *TALK)
    for _ in range(2):
        for _ in range(compactors.FACTS_TRIED - 1):
            model.answer = "no facts"
            asyncio.run(compactor.compact(other))
        model.answer = answer(VIOLINS)
        assert isinstance(asyncio.run(compactor.compact(task)), Outcome)
    assert compactor.name == "canned"


# -- over HTTP -------------------------------------------------------------------------------------------------


def ask(handler: Callable[[httpx.Request], httpx.Response]) -> Reply:
    model = RemoteModel("http://server.test/v1/", "m", transport=httpx.MockTransport(handler))
    return asyncio.run(model.ask("be terse", "what was said?", compactors.SCHEMA, 64))


def completion(text: object, **more: object) -> dict[str, object]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}], **more}


def test_a_server_is_asked_for_json_by_schema_and_its_tokens_are_counted() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=completion("{}", usage={"total_tokens": 77}))

    assert ask(handler) == Reply("{}", 77)
    body = json.loads(seen[0].content)
    assert str(seen[0].url) == "http://server.test/v1/chat/completions"
    assert body["response_format"]["json_schema"]["schema"] == compactors.SCHEMA
    assert [m["content"] for m in body["messages"]] == ["be terse", "what was said?"]


def test_an_answer_that_a_server_cut_off_is_known_as_such() -> None:
    cut = {"choices": [{"message": {"content": "{"}, "finish_reason": "length"}], "usage": {"total_tokens": 9}}
    assert ask(lambda _: httpx.Response(200, json=cut)) == Reply("{", 9, is_cut=True)


def test_tokens_that_a_server_does_not_count_are_estimated() -> None:
    assert ask(lambda _: httpx.Response(200, json=completion("x" * 40))).tokens > 10


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.Response(500, text="out of memory"), "500: out of memory"),
        (httpx.Response(200, text="<html>"), "no chat completion"),
        (httpx.Response(200, json={"choices": []}), "no chat completion"),
        (httpx.Response(200, json=[1]), "no chat completion"),
        (httpx.Response(200, json=completion(None)), "no text"),
    ],
)
def test_a_server_that_answers_otherwise_is_named_in_the_error(response: httpx.Response, words: str) -> None:
    with pytest.raises(EngineError, match=r"m at http://server\.test/v1") as caught:
        ask(lambda _: response)
    assert words in caught.value.message


def test_a_server_that_is_away_is_an_error_of_ours() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(EngineError, match="refused"):
        ask(away)


def test_an_endless_answer_is_cut() -> None:
    with pytest.raises(EngineError, match="MiB"):
        ask(lambda _: httpx.Response(200, content=b"x" * (5 << 20)))
