"""Turns become chunks: cut where a chunk is full, each turn in one chunk, in order, whatever the batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from akashic_daemon.memory import chunks, ingest
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock
from hashed_words import HashedWords


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    store = open_memory_store(tmp_path / "memory.sqlite", SystemClock())
    yield Memory(store, HashedWords())
    store.close()


def facts(first: int, count: int) -> list[Said]:
    return [
        Said("Ann", f"On day {n} the parrot number {n * 7} ate {n * 13} mangoes in room {n * 3} of house {n}", f"m{n}")
        for n in range(first, first + count)
    ]


def test_full_chunks_are_sealed_and_the_last_stays_open(memory: Memory) -> None:
    ingest.remember(memory, "user", "s", facts(0, 200))
    found = memory.store.chunks_of("user")
    assert len(found) > 2
    assert all(chunk.sealed_at_s is not None for chunk in found[:-1])
    assert found[-1].sealed_at_s is None
    assert all(chunks.GATE_TOKENS <= chunk.length_tokens <= 4 * chunks.GATE_TOKENS for chunk in found[:-1])
    assert all(0 < (chunk.estimated_rho or 0) <= 1 for chunk in found[:-1])


def test_every_turn_is_in_one_chunk_and_chunks_are_in_the_order_of_turns(memory: Memory) -> None:
    for first in range(0, 300, 60):
        ingest.remember(memory, "user", "s", facts(first, 60))
    in_chunks = [t.id for chunk in memory.store.chunks_of("user") for t in memory.store.turns_of_chunk(chunk.id)]
    assert in_chunks == [turn.id for turn in memory.store.turns_of("user")]


def test_small_talk_fills_a_chunk_later_than_facts(memory: Memory) -> None:
    ingest.remember(memory, "user", "s", facts(0, 200))
    talk = "That is so good to hear from you again my friend, and how have you all been doing these days"
    ingest.remember(memory, "project:talk", "s", [Said("Ann", f"{talk} {'so ' * n}", f"m{n}") for n in range(120)])
    (dense, *_), (sparse, *_) = memory.store.chunks_of("user"), memory.store.chunks_of("project:talk")
    assert sparse.length_tokens > 1.5 * dense.length_tokens
    assert (sparse.estimated_rho or 1) < (dense.estimated_rho or 0)


def test_a_chunk_that_was_left_too_full_by_a_crash_is_cut_later(memory: Memory) -> None:
    memory.add("user", "s", facts(0, 200))
    assert len(memory.store.chunks_of("user")) == 1
    sealed = chunks.cut_what_is_full(memory, "user")
    assert sealed
    assert [chunk.id for chunk in memory.store.waiting_chunks()] == sealed
    assert chunks.cut_what_is_full(memory, "user") == []


def test_sealing_ends_an_open_chunk_that_is_not_full(memory: Memory) -> None:
    ingest.remember(memory, "user", "s", facts(0, 3))
    (chunk,) = chunks.seal(memory, "user")
    assert [t.text for t in memory.store.turns_of_chunk(chunk)] == [said.text for said in facts(0, 3)]
    assert chunks.seal(memory, "user") == []


@pytest.mark.parametrize(
    "again", ["the parrot  eats MANGOES!", "The parrot eats mangoes", "the parrot eats mangoes..."]
)
def test_what_differs_in_case_spaces_and_its_end_only_is_stored_once_with_both_origins(
    memory: Memory, again: str
) -> None:
    first = ingest.remember(memory, "user", "s1", [Said("Ann", "the parrot eats mangoes.", "m1")])
    second = ingest.remember(memory, "user", "s2", [Said("Ann", again, "m7")])
    assert second.turn_ids == first.turn_ids
    assert second.new_ids == ()
    assert {(s.name, s.reference) for s in memory.store.sources_of(first.turn_ids[0])} == {("s1", "m1"), ("s2", "m7")}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("the parrot eats mangoes", "the parrot eats mangoes?"),
        ("use FooBar", "use foobar"),
        ("rm -rf /tmp/A", "rm -rf /tmp/a"),
        ("line one\nline two", "line one line two"),
        ("the port is 1.5", "the port is 1 5"),
        ("I do like tea", "I do not like tea"),
    ],
)
def test_what_may_mean_something_else_is_stored_apart(memory: Memory, one: str, other: str) -> None:
    ingest.remember(memory, "user", "s", [Said("Ann", one, "1"), Said("Ann", other, "2")])
    assert [turn.text for turn in memory.store.turns_of("user")] == [one, other]


def test_the_same_words_of_somebody_else_are_stored_apart(memory: Memory) -> None:
    done = ingest.remember(memory, "user", "s", [Said("Ann", "I like tea", "1"), Said("Bob", "I like tea.", "2")])
    assert len(done.new_ids) == 2
