"""Memory on disk: turns once with all their origins, chunks, records, and forgetting that reaches everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from akashic_daemon.errors import NotFound, StoreError
from akashic_daemon.store.memory.rows import Chunk, Cut, NewRecord, NewTurn, RecordRelation, Relation
from akashic_daemon.store.memory.store import MemoryStore, open_memory_store


class Clock:
    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        self.at_s += 1
        return self.at_s

    def monotonic_s(self) -> float:
        return self.at_s


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryStore]:
    opened = open_memory_store(tmp_path / "memory.sqlite", Clock())
    yield opened
    opened.close()


def turn(text: str, reference: str = "", speaker: str = "Ann", event_at_s: float | None = None) -> NewTurn:
    words = tuple(text.lower().split())
    return NewTurn(speaker, text, reference or text, event_at_s, len(words), words)


def open_chunk(store: MemoryStore) -> Chunk:
    """Return the chunk that takes turns now."""
    chunk = store.filled_chunk("user")
    assert chunk is not None
    return chunk


def seal(store: MemoryStore, rho: float) -> Chunk:
    """Seal the open chunk whole, and return it as it was."""
    chunk = open_chunk(store)
    store.cut_chunk(chunk, [Cut(tuple(turn.id for turn in store.turns_of_chunk(chunk.id)), rho)])
    return chunk


def test_adding_the_same_turns_again_changes_nothing(store: MemoryStore) -> None:
    new = [turn("the cat sat"), turn("the dog ran")]
    first = store.add_turns("user", "s1", new)
    again = store.add_turns("user", "s1", new)
    assert first.new_ids == first.turn_ids == again.turn_ids
    assert again.new_ids == ()
    assert store.terms("user")["the"][1] == 2
    assert [len(store.sources_of(i)) for i in first.turn_ids] == [1, 1]


def test_what_is_said_again_and_nearly_so_among_new_turns_is_stored_once(store: MemoryStore) -> None:
    words = ["The cat sat.", "the dog ran", "the cat sat", "The cat sat.", "THE DOG RAN!"]
    added = store.add_turns("user", "s1", [turn(text, f"m{n}") for n, text in enumerate(words)])
    cat, dog = added.new_ids
    assert added.turn_ids == (cat, dog, cat, cat, dog)
    assert [store.turns([i])[i].text for i in (cat, dog)] == words[:2]
    assert [s.reference for s in store.sources_of(cat)] == ["m0", "m2", "m3"]
    assert store.turns_of_chunk(open_chunk(store).id) == [store.turns([i])[i] for i in (cat, dog)]


def test_what_was_said_in_two_places_is_stored_once_and_names_both(store: MemoryStore) -> None:
    (one,) = store.add_turns("user", "s1", [turn("the cat sat", "m1", event_at_s=1.0)]).turn_ids
    (two,) = store.add_turns("user", "s2", [turn("the cat sat", "m9", event_at_s=2.0)]).turn_ids
    assert one == two
    assert [(s.name, s.reference, s.event_at_s) for s in store.sources_of(one)] == [
        ("s1", "m1", 1.0),
        ("s2", "m9", 2.0),
    ]
    assert [t.id for t in store.turns_of_source("user", "s2")] == [one]
    assert store.terms("user")["cat"][1] == 1


def test_another_speaker_or_namespace_makes_it_another_turn(store: MemoryStore) -> None:
    ids = [
        *store.add_turns("user", "s1", [turn("yes", "1"), turn("yes", "2", speaker="Bob")]).turn_ids,
        *store.add_turns("project:x", "s1", [turn("yes", "1")]).turn_ids,
    ]
    assert len(set(ids)) == 3
    assert store.namespaces() == {"project:x": 1, "user": 2}


def test_turns_follow_each_other_within_their_source(store: MemoryStore) -> None:
    a, b = store.add_turns("user", "s1", [turn("one"), turn("two")]).turn_ids
    (other,) = store.add_turns("user", "s2", [turn("three")]).turn_ids
    (c,) = store.add_turns("user", "s1", [turn("four")]).turn_ids
    found = store.turns([a, b, other, c])
    assert [found[i].previous_id for i in (a, b, other, c)] == [None, a, None, b]


def test_a_sealed_chunk_takes_no_more_turns_and_waits(store: MemoryStore) -> None:
    (a,) = store.add_turns("user", "s1", [turn("one two")]).turn_ids
    sealed = seal(store, 0.4)
    (b,) = store.add_turns("user", "s1", [turn("three")]).turn_ids
    assert [t.id for t in store.turns_of_chunk(sealed.id)] == [a]
    assert store.turns([b])[b].chunk_id == open_chunk(store).id != sealed.id
    assert [(k.id, k.length_tokens, k.estimated_rho) for k in store.waiting_chunks()] == [(sealed.id, 2, 0.4)]
    store.reconciled(sealed.id, made_by="extractive", version=("one two", 1.0))
    assert store.waiting_chunks() == []
    assert [v.version for v in store.chunk_versions(sealed.id)] == [1]


def test_a_superseded_record_stays_and_can_be_made_current_again(store: MemoryStore) -> None:
    (a,) = store.add_turns("user", "s1", [turn("Ann lives in Rome")]).turn_ids
    (b,) = store.add_turns("user", "s1", [turn("Ann lives in Oslo")]).turn_ids
    chunk = open_chunk(store).id
    new = [
        NewRecord(f"Ann lives in {city}", (t,), "Ann", "home", at) for city, t, at in (("Rome", a, 1), ("Oslo", b, 2))
    ]
    old_id, new_id = store.reconciled(chunk, made_by="extractive", new_records=new)
    store.relate([RecordRelation(new_id, old_id, Relation.SUPERSEDES, "same subject and slot", 5.0)])
    assert [(r.id, r.is_current) for r in store.records_of_slot("user", "Ann", "home")] == [
        (old_id, False),
        (new_id, True),
    ]
    store.unrelate(new_id, old_id, Relation.SUPERSEDES)
    assert all(r.is_current for r in store.records_of_chunk(chunk))
    with pytest.raises(NotFound):
        store.unrelate(new_id, old_id, Relation.SUPERSEDES)


def test_what_reconciling_gives_is_kept_whole_or_not_at_all(store: MemoryStore) -> None:
    store.add_turns("user", "s1", [turn("one")])
    chunk = open_chunk(store).id
    with pytest.raises(StoreError):
        store.reconciled(chunk, made_by="x", version=("one", 1.0), new_records=[NewRecord("r", (999,))])
    assert store.chunk_versions(chunk) == []
    assert store.records_of_chunk(chunk) == []


def test_forgetting_leaves_the_text_in_no_file(tmp_path: Path) -> None:
    secret = "zanzibarquux"
    store = open_memory_store(tmp_path / "memory.sqlite", Clock())
    a, b, c = store.add_turns("user", "s1", [turn("hello there"), turn(f"code {secret}"), turn("bye now")]).turn_ids
    chunk = seal(store, 0.5).id
    record = NewRecord(f"the code is {secret}", (a, b))
    (record_id,) = store.reconciled(chunk, made_by="x", version=(f"code {secret}", 0.5), new_records=[record])
    store.log_all([("user", [b, c]), ("user", [a, c])])

    planned = store.plan_forgetting([b, 999])
    assert secret in store.turns([b])[b].text
    gone = store.forget([b, 999])
    assert planned == gone
    assert (gone.turn_ids, gone.record_ids, gone.changed_chunk_ids) == ((b,), (record_id,), (chunk,))
    assert store.turns([b]) == {}
    assert store.turns([c])[c].previous_id == a
    assert secret not in store.terms("user")
    assert store.result_sets("user") == [(a, c)]
    assert [k.id for k in store.waiting_chunks()] == [chunk]
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes(), file
    store.close()


def test_a_chunk_whose_turns_are_all_forgotten_goes(store: MemoryStore) -> None:
    ids = store.add_turns("user", "s1", [turn("one"), turn("two")]).turn_ids
    chunk = open_chunk(store).id
    assert store.forget(ids).emptied_chunk_ids == (chunk,)
    with pytest.raises(NotFound):
        store.chunk(chunk)
    assert store.add_turns("user", "s1", [turn("three")]).turn_ids[0] > max(ids)


def test_halves_of_surrogate_pairs_and_zeros_are_stored(store: MemoryStore) -> None:
    (a,) = store.add_turns("user", "s1", [NewTurn("A", "x\ud83d \0 y", "r")]).turn_ids
    assert store.turns([a])[a].text == "x\ufffd \0 y"
    assert store.add_turns("user", "s1", [NewTurn("A", "x\ud83d \0 y", "r")]).new_ids == ()


def test_a_changed_text_is_found_when_it_is_read(tmp_path: Path) -> None:
    store = open_memory_store(tmp_path / "memory.sqlite", Clock())
    (a,) = store.add_turns("user", "s1", [turn("the sky is blue")]).turn_ids
    store.close()
    path = tmp_path / "memory.sqlite"
    path.write_bytes(path.read_bytes().replace(b"the sky is blue", b"the sky is grey"))
    store = open_memory_store(path, Clock())
    with pytest.raises(StoreError, match=f"turn {a}"):
        store.turns([a])
    store.close()


def test_vectors_of_another_embedder_are_not_taken_for_this_ones(store: MemoryStore) -> None:
    (a,) = store.add_turns("user", "s1", [turn("one")]).turn_ids
    store.put_vectors("small", [(a, b"123"), (999, b"x")])
    assert [row.vector for row in store.index_rows("user", "small")] == [b"123"]
    assert [row.vector for row in store.index_rows("user", "large")] == [None]
    assert store.index_rows("user", "small", after_id=a) == []


def test_a_namespace_that_has_nothing_is_an_error(store: MemoryStore) -> None:
    with pytest.raises(NotFound, match="'nowhere'"):
        store.turns_of("nowhere")
