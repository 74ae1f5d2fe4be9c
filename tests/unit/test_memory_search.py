"""Memory as an object: what fits is found, and the index is what the store says, at any time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from akashic_daemon.errors import StoreUnwritable
from akashic_daemon.memory import candidates, scoring
from akashic_daemon.memory import postings as postings_module
from akashic_daemon.memory.index import NamespaceIndex, signs_of
from akashic_daemon.memory.meaning import TokenWeights
from akashic_daemon.memory.memory import LONGEST_TURN, Memory, Said
from akashic_daemon.memory.postings import Postings
from akashic_daemon.store.memory.rows import EmbedderState
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock
from hashed_words import HashedWords


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    store = open_memory_store(tmp_path / "memory.sqlite", SystemClock())
    yield Memory(store, HashedWords())
    store.close()


VOCABULARY = [f"w{chr(97 + a)}{chr(97 + b)}" for a in range(20) for b in range(20)]


def said(*texts: str, speaker: str = "Ann") -> list[Said]:
    return [Said(speaker, text, str(number)) for number, text in enumerate(texts)]


def reopened(memory: Memory) -> Memory:
    return Memory(memory.store, HashedWords())


def weights_of(memory: Memory) -> TokenWeights:
    """Return the weights that a namespace's next question is embedded by."""
    memory.index("user")
    return memory._weights["user"]


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


def test_vectors_are_those_of_the_stored_texts(memory: Memory) -> None:
    # So many that a few more don't let all be embedded anew, from the stored texts.
    memory.add("user", "s0", said(*(f"{fact} {number}" for number in range(4) for fact in FACTS)))
    texts = ["The parrot eats mangoes!", "half a \ud83d pair", "the PARROT eats mangoes", FACTS[1]]
    ids = memory.add("user", "s1", said(*texts)).new_ids
    stored = [memory.store.turns([i])[i].text for i in ids]
    assert stored == [texts[0], "half a \ufffd pair", FACTS[1]]
    rows = memory.store.index_rows("user", "hashed")
    expected = weights_of(memory).embed(HashedWords().token_ids(stored))
    kept = [np.frombuffer(row.vector or b"", "<f2") for row in rows[-3:]]
    assert np.allclose(np.stack(kept), expected, atol=1e-2)


def test_an_index_read_from_the_store_finds_the_same(memory: Memory) -> None:
    for number in range(12):
        memory.add("user", f"s{number}", said(*(f"{fact} {number}" for fact in FACTS)))
    expected = [(s.turn.id, round(s.score, 3)) for s in memory.search(["user"], "flat tyre 7")]
    assert [(s.turn.id, round(s.score, 3)) for s in reopened(memory).search(["user"], "flat tyre 7")] == expected


def test_another_embedder_makes_every_vector_anew_and_the_first_one_again(memory: Memory) -> None:
    class Longer(HashedWords):
        name = "longer"
        dimensions = 2 * HashedWords.dimensions

    memory.add("user", "s1", said(*FACTS))
    other = Memory(memory.store, Longer())
    assert other.search(["user"], "flat tyres", limit=1)[0].turn.text == FACTS[2]
    assert other.index("user").vectors.shape == (len(FACTS), Longer.dimensions)
    assert {row.vector for row in memory.store.index_rows("user", HashedWords.name)} == {None}
    assert all(row.vector for row in memory.store.index_rows("user", Longer.name))
    other.add("user", "s2", said("the parrot is back"))
    again = reopened(memory)
    assert again.search(["user"], "parrot", limit=1)[0].turn.text in ("the parrot is back", FACTS[0])
    assert again.index("user").vectors.shape == (len(FACTS) + 1, HashedWords.dimensions)
    state = memory.store.embedder_state("user", HashedWords.name)
    assert state is not None
    assert int(np.frombuffer(state.body, "<u4")[0]) == len(FACTS) + 1  # counted once


def test_searches_of_several_namespaces_are_merged_and_unknown_ones_have_nothing(memory: Memory) -> None:
    memory.add("user", "s1", said(FACTS[0]))
    memory.add("project:x", "s1", said(FACTS[1]))
    spaces = ["user", "project:x", "session:none"]
    assert {s.turn.namespace for s in memory.search(spaces, "parrot rent")} == {"user", "project:x"}


def test_a_namespace_that_nothing_is_in_has_nothing_however_often_it_is_asked_and_what_is_added_then(
    memory: Memory,
) -> None:
    for _ in range(3):
        assert memory.search(["project:new"], FACTS[0]) == []
    memory.add("user", "s1", said(*FACTS))
    assert [span.turn.namespace for span in memory.search(["project:new", "user"], FACTS[0], limit=1)] == ["user"]
    memory.add("project:new", "s2", said(FACTS[0]))
    assert [span.turn.text for span in memory.search(["project:new"], FACTS[0])] == [FACTS[0]]


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
    before = weights_of(memory).weights
    (gone,) = memory.add("user", "s2", said(FACTS[0])).new_ids
    assert (weights_of(memory).weights != before).any()
    memory.forget([gone])
    assert (weights_of(memory).weights == before).all()
    state = memory.store.embedder_state("user", "hashed")
    assert state is not None
    assert (TokenWeights(HashedWords(), state).weights == before).all()


def states_written(memory: Memory) -> list[int]:
    """Note the size of each of the embedder's states that is written from now on."""
    sizes: list[int] = []
    put = memory.store.put_vectors

    def noting(embedder: str, vectors: Iterable[tuple[int, bytes]], state: EmbedderState | None = None) -> None:
        sizes.extend([] if state is None else [len(state.body)])
        put(embedder, vectors, state)

    memory.store.put_vectors = noting  # type: ignore[method-assign]
    return sizes


def test_counts_are_not_written_with_each_turn_and_what_came_since_is_counted_at_the_next_start(memory: Memory) -> None:
    memory.add("user", "s", said(*(f"{fact} {n}" for n in range(250) for fact in FACTS)))
    sizes = states_written(memory)
    for number in range(600):
        memory.add("user", f"s{number}", said(f"stork {number} came by"))
        if number in (5, 511, 599):
            known = weights_of(memory)
            again = weights_of(reopened(memory))
            assert (again.weights == known.weights).all()
            assert again.counted_id == known.counted_id
    assert len(sizes) == 1
    last = reopened(memory)
    (gone,) = last.add("user", "late", said("a heron came by")).new_ids
    last.forget([gone])
    assert (weights_of(reopened(memory)).weights == weights_of(memory).weights).all()


def test_counts_as_older_versions_kept_them_are_read(memory: Memory) -> None:
    memory.add("user", "s", said(*(f"{fact} {n}" for n in range(4) for fact in FACTS)))
    before = weights_of(memory).weights
    state = memory.store.embedder_state("user", "hashed")
    assert state is not None
    older = replace(state, body=state.body[:4] + state.body[16:])
    memory.store.put_vectors("hashed", [], older)
    again = reopened(memory)
    assert (weights_of(again).weights == before).all()
    again.add("user", "late", said("a heron came by"))
    assert (weights_of(reopened(memory)).weights == weights_of(again).weights).all()


@pytest.mark.parametrize("between", [" ", "\n", "", "\ud83c"])
def test_a_long_message_is_kept_in_parts_and_its_end_is_found(memory: Memory, between: str) -> None:
    text = between.join(f"filler{number}" for number in range(4000)) + " the parrot eats mangoes"
    added = memory.add("user", "s1", [Said("Ann", text, "m1")])
    turns = memory.store.turns(added.turn_ids)
    assert "".join(turns[i].text for i in added.turn_ids) == text.replace("\ud83c", "\ufffd")
    assert max(len(turn.text) for turn in turns.values()) <= LONGEST_TURN
    assert memory.search(["user"], "parrot mangoes", limit=1)[0].turn.id == added.turn_ids[-1]
    assert [memory.store.sources_of(i)[0].reference for i in added.turn_ids[:2]] == ["m1", "m1#2"]


def test_turns_that_a_full_disk_left_without_vectors_are_found_once_they_are_added_again(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.add("user", "s1", said(FACTS[0]))
    with monkeypatch.context() as patched:
        patched.setattr(memory.store, "put_vectors", Mock(side_effect=StoreUnwritable("writing: the disk is full")))
        with pytest.raises(StoreUnwritable):
            memory.add("user", "s1", said(*FACTS))
    assert memory.add("user", "s1", said(*FACTS)).new_ids == ()
    assert memory.search(["user"], "flat tyres", limit=1)[0].turn.text == FACTS[2]
    assert weights_of(memory)._turns == len(FACTS)


def test_as_many_are_found_as_are_asked_for_though_others_that_fit_were_said_later(memory: Memory) -> None:
    early = [Said("Ann", f"the parrot eats, {n} times", f"e{n}", 100.0 + n) for n in range(3)]
    late = [Said("Ann", f"parrot {n}", f"l{n}", 200.0 + n) for n in range(30)]
    memory.add("user", "s1", [*early, Said("Ann", "the parrot sleeps", "u"), *late])
    found = memory.search(["user"], "parrot", limit=4, asked_at_s=150.0)
    assert {span.turn.text for span in found} == {*(one.text for one in early), "the parrot sleeps"}


def test_a_question_without_any_known_word_breaks_nothing(memory: Memory) -> None:
    memory.add("user", "s1", said(*FACTS, "", "???", "🎉"))
    assert len(memory.search(["user"], "")) == len(memory.search(["user"], "xyzzy")) == 7


@pytest.fixture
def large(memory: Memory) -> NamespaceIndex:
    rng = np.random.default_rng(3)
    for source in range(60):
        memory.add("user", f"s{source}", said(*(" ".join(rng.choice(VOCABULARY, 12)) for _ in range(50))))
    return memory.index("user")


def test_a_close_look_at_a_part_finds_what_a_look_at_all_does(memory: Memory, large: NamespaceIndex) -> None:
    query = memory.query("user", " ".join(VOCABULARY[5:9]))
    some = candidates.find(large, query, 100)
    every = np.arange(len(large), dtype=np.int32)
    scores = scoring.features(large, query, every) @ scoring.WEIGHTS
    assert len(some) < len(every)
    assert set(np.argsort(-scores)[:10]) <= set(some)
    assert scoring.features(large, query, some) @ scoring.WEIGHTS == pytest.approx(scores[some], abs=1e-5)


def test_a_frequent_term_is_left_to_the_close_look(
    memory: Memory, large: NamespaceIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.add("user", "rare", said("zebra " + VOCABULARY[0]))
    query = memory.query("user", f"zebra {VOCABULARY[0]}")
    assert len(candidates.by_words(large, query, 500)) > 1
    monkeypatch.setattr(candidates, "MOST_ENTRIES", 1)
    assert candidates.by_words(large, query, 500).tolist() == [len(large) - 1]
    assert memory.search(["user"], f"zebra {VOCABULARY[0]}", limit=1)[0].turn.text.startswith("zebra")


def test_a_search_leaves_the_scratch_as_it_was(
    memory: Memory, large: NamespaceIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    for far_more in (0, 1000):
        monkeypatch.setattr(scoring, "_FAR_MORE", far_more)
        memory.search(["user"], " ".join(VOCABULARY[5:9]))
        assert not large.scratch.any()


def test_terms_are_counted_alike_whether_looked_up_or_written_down(
    memory: Memory, large: NamespaceIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = memory.query("user", " ".join(VOCABULARY[5:9]))
    rows = candidates.find(large, query, 100)
    written = scoring.features(large, query, rows)
    monkeypatch.setattr(scoring, "_FAR_MORE", 0)
    assert scoring.features(large, query, rows) == pytest.approx(written)


@pytest.mark.parametrize("size", [1, 300, 1024, 20_001])
def test_the_nearest_of_many_rows_are_found_and_of_equal_ones_the_newest(size: int) -> None:
    distances = np.random.default_rng(size).integers(90, 160, size).astype(np.uint8)
    rows = candidates.nearest(distances, 50)
    expected = sorted(range(size), key=lambda row: (distances[row], -row))[:50]
    assert sorted(distances[rows]) == sorted(distances[expected])
    if size <= 64 * 50:
        assert rows.tolist() == sorted(expected)


@pytest.mark.parametrize("dimensions", [24, 64, 100, 256])
def test_signs_differ_where_vectors_do(dimensions: int) -> None:
    rng = np.random.default_rng(dimensions)
    a, b = rng.standard_normal((2, 9, dimensions)).astype(np.float32)
    differing = np.bitwise_count(signs_of(a) ^ signs_of(b)).sum(axis=0)
    assert differing.tolist() == ((a > 0) != (b > 0)).sum(axis=1).tolist()


def test_postings_give_what_was_added_before_and_after_they_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postings_module, "_LONGEST_TAIL", 5000)
    rng = np.random.default_rng(5)
    postings, expected = Postings(), dict[tuple[int, int], int]()
    for start in range(0, 9000, 300):
        rows = np.repeat(np.arange(start, start + 300, dtype=np.int32), 10)
        own = rng.integers(start // 300, 60 + start // 300, len(rows)).astype(np.uint32)
        postings.add(rows, own)
        for row, term in zip(rows.tolist(), own.tolist(), strict=True):
            expected[term, row] = expected.get((term, row), 0) + 1
    for term in (0, 17, 59, 60, 80, 999):
        found = postings.of(term)
        want = {row: count for (t, row), count in expected.items() if t == term}
        assert found[0].tolist() == sorted(want)
        assert dict(zip(found[0].tolist(), found[1].tolist(), strict=True)) == want
