"""Memory as an object: what fits is found, and the index is what the store says, at any time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from akashic_daemon.memory import scoring
from akashic_daemon.memory.memory import LONGEST_TURN, Memory, Said
from akashic_daemon.memory.postings import Postings
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock
from hashed_words import HashedWords


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    store = open_memory_store(tmp_path / "memory.sqlite", SystemClock())
    yield Memory(store, HashedWords())
    store.close()


def said(*texts: str, speaker: str = "Ann") -> list[Said]:
    return [Said(speaker, text, str(number)) for number, text in enumerate(texts)]


def reopened(memory: Memory) -> Memory:
    return Memory(memory.store, HashedWords())


FACTS = ("the parrot eats mangoes", "rent is due on Monday", "the bicycle has a flat tyre", "coffee is out again")


def test_the_turn_that_fits_comes_first_and_its_parts_make_its_score(memory: Memory) -> None:
    memory.add("user", "s1", said(*FACTS))
    first, *rest = memory.search(["user"], "Which tyres are flat?")
    assert first.turn.text == FACTS[2]
    assert all(first.score >= span.score for span in rest)
    assert sum(first.parts.values()) == pytest.approx(first.score, abs=1e-4)
    assert set(first.parts) == set(scoring.FEATURES)


def test_a_turn_is_found_by_what_stands_beside_it(memory: Memory) -> None:
    memory.add("user", "s1", [*said("What does the parrot eat?"), Said("Bob", "Mangoes, mostly", "b")])
    memory.add("user", "s2", said(*FACTS[1:]))
    assert "Mangoes, mostly" in [span.turn.text for span in memory.search(["user"], "parrot", limit=2)]


def test_whom_the_question_names_comes_before_others(memory: Memory) -> None:
    for speaker in ("Melanie", "Joanna"):
        memory.add("user", f"s-{speaker}", said("I went to the museum", speaker=speaker))
    assert [s.turn.speaker for s in memory.search(["user"], "Has Mel been to a museum?")] == ["Melanie", "Joanna"]
    assert [s.turn.speaker for s in memory.search(["user"], "Has Joanna been to a museum?")] == ["Joanna", "Melanie"]


def test_an_index_read_from_the_store_finds_the_same(memory: Memory) -> None:
    for number in range(12):
        memory.add("user", f"s{number}", said(*(f"{fact} {number}" for fact in FACTS)))
    expected = [(s.turn.id, round(s.score, 3)) for s in memory.search(["user"], "flat tyre 7")]
    assert [(s.turn.id, round(s.score, 3)) for s in reopened(memory).search(["user"], "flat tyre 7")] == expected


def test_searches_of_several_namespaces_are_merged_and_unknown_ones_have_nothing(memory: Memory) -> None:
    memory.add("user", "s1", said(FACTS[0]))
    memory.add("project:x", "s1", said(FACTS[1]))
    spaces = ["user", "project:x", "session:none"]
    assert {s.turn.namespace for s in memory.search(spaces, "parrot rent")} == {"user", "project:x"}


def test_what_is_forgotten_is_found_no_more(memory: Memory) -> None:
    memory.add("user", "s1", said(*FACTS))
    (hit,) = memory.search(["user"], "parrot", limit=1)
    memory.forget([hit.turn.id])
    assert FACTS[0] not in [s.turn.text for s in memory.search(["user"], "parrot")]
    assert len(memory.index("user")) == len(FACTS) - 1
    memory.add("user", "s1", said("the parrot is back"))
    assert memory.search(["user"], "parrot", limit=1)[0].turn.text == "the parrot is back"


def test_counts_of_tokens_know_nothing_of_what_is_forgotten(memory: Memory) -> None:
    memory.add("user", "s1", said(*FACTS[1:]))
    before = memory.store.embedder_state("user", "hashed")
    (gone,) = memory.add("user", "s2", said(FACTS[0])).new_ids
    assert memory.store.embedder_state("user", "hashed") != before
    memory.forget([gone])
    after = memory.store.embedder_state("user", "hashed")
    assert before is not None
    assert after is not None
    assert after.body == before.body


@pytest.mark.parametrize("between", [" ", "\n", "", "\ud83c"])
def test_a_long_message_is_kept_in_parts_and_its_end_is_found(memory: Memory, between: str) -> None:
    text = between.join(f"filler{number}" for number in range(4000)) + " the parrot eats mangoes"
    added = memory.add("user", "s1", [Said("Ann", text, "m1")])
    turns = memory.store.turns(added.turn_ids)
    assert "".join(turns[i].text for i in added.turn_ids) == text.replace("\ud83c", "\ufffd")
    assert max(len(turn.text) for turn in turns.values()) <= LONGEST_TURN
    assert memory.search(["user"], "parrot mangoes", limit=1)[0].turn.id == added.turn_ids[-1]
    assert [memory.store.sources_of(i)[0].reference for i in added.turn_ids[:2]] == ["m1", "m1#2"]


def test_a_budget_is_kept(memory: Memory) -> None:
    memory.add("user", "s1", said(*FACTS))
    spans = memory.search_within(["user"], "parrot tyre coffee", 12)
    assert spans
    assert sum(span.turn.length_tokens for span in spans) <= 12


def test_a_question_without_any_known_word_breaks_nothing(memory: Memory) -> None:
    memory.add("user", "s1", said(*FACTS, "", "???", "🎉"))
    assert len(memory.search(["user"], "")) == len(memory.search(["user"], "xyzzy")) == 7


def test_a_close_look_at_a_part_finds_what_a_look_at_all_does(memory: Memory) -> None:
    rng = np.random.default_rng(3)
    vocabulary = [f"w{chr(97 + a)}{chr(97 + b)}" for a in range(20) for b in range(20)]
    memory.add("user", "s", said(*(" ".join(rng.choice(vocabulary, 12)) for _ in range(1500))))
    index, query = memory.index("user"), memory.query("user", " ".join(vocabulary[5:9]))
    by_words = scoring.score_words(index, query)
    some = scoring.candidates(index, by_words, scoring.score_sketches(index, query), 100)
    every = np.arange(len(index), dtype=np.int32)
    scores = scoring.features(index, query, by_words, every) @ scoring.WEIGHTS
    assert len(some) < len(every)
    assert set(np.argsort(-scores)[:10]) <= set(some)


def test_the_best_of_many_rows_are_among_those_looked_at() -> None:
    rng = np.random.default_rng(11)
    for size in (300, 1024, 20_001):
        scores = rng.standard_normal(size).astype(np.float32)
        rows = scoring._best(scores, 50)
        assert sorted(rows) == sorted(np.argsort(-scores)[:50])
    assert len(scoring._best(np.zeros(20_001, np.float32), 50)) == 0


def test_postings_give_what_was_added_before_and_after_they_are_merged() -> None:
    rng = np.random.default_rng(5)
    postings, expected = Postings(), dict[tuple[int, int], int]()
    for start in range(0, 9000, 300):
        rows = np.repeat(np.arange(start, start + 300, dtype=np.int32), 10)
        own = rng.integers(0, 60, len(rows)).astype(np.uint32)
        postings.add(rows, own)
        for row, term in zip(rows.tolist(), own.tolist(), strict=True):
            expected[term, row] = expected.get((term, row), 0) + 1
    for term in (0, 17, 59, 999):
        found = postings.of(term)
        want = {row: count for (t, row), count in expected.items() if t == term}
        assert dict(zip(found[0].tolist(), found[1].tolist(), strict=True)) == want
