"""A sealed chunk is reconciled with what is known: related chunks, compacted text, statements and how they stand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from akashic_daemon.memory import chunks, ingest, reconcile
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.memory.postings import Postings
from akashic_daemon.memory.retold import EXTRACTIVE
from akashic_daemon.store.memory.rows import Record, Relation
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock
from hashed_words import HashedWords


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    store = open_memory_store(tmp_path / "memory.sqlite", SystemClock())
    yield Memory(store, HashedWords())
    store.close()


def kept(memory: Memory, *said: Said, source: str = "s", namespace: str = "user") -> int:
    """Make a chunk of what was said, reconcile it, and return its id."""
    ingest.remember(memory, namespace, source, said)
    (chunk,) = chunks.seal(memory, namespace)
    task = reconcile.prepare(memory, chunk)
    reconcile.store(memory, task, task.extractive)
    return chunk


def say(text: str, at_s: float | None = None, speaker: str = "Ann") -> Said:
    return Said(speaker, text, f"{speaker}{at_s}{hash(text)}", at_s)


def records(memory: Memory) -> list[Record]:
    store = memory.store
    return [record for chunk in store.chunks_of("user") for record in store.records_of_chunk(chunk.id)]


def standing(memory: Memory) -> list[tuple[str, bool]]:
    return [(record.value, record.is_current) for record in records(memory)]


def test_a_later_statement_of_one_slot_supersedes_and_both_stay(memory: Memory) -> None:
    kept(memory, say("I live in Lyon.", 100.0), source="s1")
    kept(memory, say("I moved to Paris.", 200.0), source="s2")
    assert standing(memory) == [("Lyon", False), ("Paris", True)]
    old, new = records(memory)
    (relation,) = memory.store.relations_of(new.id)
    assert (relation.record_id, relation.other_id) == (new.id, old.id)
    assert relation.relation is Relation.SUPERSEDES
    assert "Paris after Lyon" in relation.reason
    assert [turn.text for turn in memory.store.turns(old.turn_ids).values()] == ["I live in Lyon."]


def test_what_earlier_turns_of_the_namespace_said_is_worth_less_when_it_is_said_again(memory: Memory) -> None:
    """However rare its terms are: both chunks have the same ones, and equally many characters."""
    made = []
    for text in ("Bob restores violins near Cremona.", "Near Cremona restores Bob violins."):
        ingest.remember(memory, "user", "s", [say(text)])
        made += chunks.seal(memory, "user")
    first, again = (reconcile.prepare(memory, chunk).clauses for chunk in made)
    assert [clause.cost_chars for clause in first] == [clause.cost_chars for clause in again]
    assert again[0].worth < first[0].worth


def test_what_was_superseded_before_is_not_judged_again(memory: Memory) -> None:
    for at_s, said in ((100.0, "I live in Lyon."), (200.0, "I moved to Paris."), (300.0, "I moved to Rome.")):
        kept(memory, say(said, at_s), source=f"s{at_s}")
    assert standing(memory) == [("Lyon", False), ("Paris", False), ("Rome", True)]
    _, paris, rome = records(memory)
    assert [relation.other_id for relation in memory.store.relations_of(rome.id)] == [paris.id]


def test_what_was_said_earlier_and_came_later_does_not_supersede(memory: Memory) -> None:
    kept(memory, say("I moved to Paris.", 200.0))
    kept(memory, say("I live in Lyon.", 100.0))
    assert dict(standing(memory)) == {"Paris": True, "Lyon": False}


def test_another_speaker_or_slot_is_never_retired(memory: Memory) -> None:
    kept(memory, say("I live in Lyon.", 100.0), say("I work at Acme.", 101.0))
    kept(memory, say("I moved to Paris.", 200.0, speaker="Bob"))
    assert all(is_current for _, is_current in standing(memory))


def test_values_that_nothing_says_changed_stay_as_a_dated_pair(memory: Memory) -> None:
    kept(memory, say("My birthday is on May 4.", 100.0))
    kept(memory, say("My birthday is on June 9.", 200.0))
    assert all(is_current for _, is_current in standing(memory))
    old, new = records(memory)
    (relation,) = memory.store.relations_of(old.id)
    assert (relation.record_id, relation.other_id, relation.relation) == (new.id, old.id, Relation.CONTRADICTS)
    assert (old.event_at_s, new.event_at_s) == (100.0, 200.0)


def test_statements_of_one_chunk_are_judged_too(memory: Memory) -> None:
    kept(memory, say("I live in Lyon.", 100.0), say("I moved to Paris.", 200.0))
    assert standing(memory) == [("Lyon", False), ("Paris", True)]


def test_chunks_about_the_same_are_linked_across_sessions_at_most_five(memory: Memory) -> None:
    about = [kept(memory, say(f"the parrot Quasimodo ate mango number {n}"), source=f"s{n}") for n in range(8)]
    other = kept(memory, say("interest rates rose in Frankfurt yesterday"), source="bank")
    last = kept(memory, say("Quasimodo the parrot wants mango again"), source="last")
    links = memory.store.linked_chunks(last)
    assert 1 <= len(links) <= reconcile.MOST_RELATED
    assert set(links) <= set(about)
    assert other not in links


def test_memory_of_another_namespace_is_not_related(memory: Memory) -> None:
    kept(memory, say("the parrot Quasimodo ate a mango"), namespace="project:p")
    assert memory.store.linked_chunks(kept(memory, say("Quasimodo the parrot wants mango"))) == {}


def test_prose_is_cut_to_half_and_code_is_kept_word_for_word(memory: Memory) -> None:
    code = "def add(a, b):\n    return a + b\n\n\nclass Sum:\n    total = 0\n"
    talk = [
        say(
            f"Oh wow, that is so nice to hear, thanks a lot! By the way, Marco {n} restores violins in Cremona. How are you?"
        )
        for n in range(20)
    ]
    chunk = kept(memory, *talk, Said("tool", code, "code"))
    (version,) = memory.store.chunk_versions(chunk)
    assert code.strip() in version.text
    assert "Cremona" in version.text
    assert "nice to hear" not in version.text
    assert version.rho < 0.8
    assert version.made_by == EXTRACTIVE


def test_lines_that_a_related_chunk_has_are_named_not_kept_again(memory: Memory) -> None:
    log = "".join(f"12:00:{n:02} INFO copying volume vol-{n * 37} done\n" for n in range(30))
    kept(memory, Said("tool", log, "1"))
    second = kept(memory, Said("tool", log + "12:01:00 ERROR volume vol-9999 failed\n", "2"))
    (version,) = memory.store.chunk_versions(second)
    assert "vol-9999" in version.text
    assert "vol-37 " not in version.text
    assert "lines as in turn" in version.text
    assert version.rho < 0.2


@pytest.mark.parametrize(
    "failed", ["<tool_use_error>File does not exist.</tool_use_error>", "[ERROR] src/a.py: permission denied"]
)
def test_a_read_that_failed_takes_the_place_of_no_other(memory: Memory, failed: str) -> None:
    call = '[calls Read] {"file_path": "src/a.py"}'
    shown = "def one(x):\n    return x.old_name\n" * 6
    chunk = kept(
        memory, Said("assistant", call, "c1"), Said("tool Read", shown, "r1"),
        Said("assistant", f"once more\n{call}", "c2"), Said("tool Read", failed, "r2"),
    )  # fmt: skip
    (version,) = memory.store.chunk_versions(chunk)
    assert "old_name" in version.text


def test_a_read_of_a_file_that_was_read_again_in_the_chunk_is_named_only(memory: Memory) -> None:
    call = Said("assistant", '[calls Read] {"file_path": "src/a.py"}', "c1")
    old = "def one(x):\n    return x.old_name\n" * 3
    new = "def two(y):\n    return y.new_name\n" * 3
    chunk = kept(
        memory, call, Said("tool Read", old, "r1"), say("please rename it"),
        Said("assistant", '[calls Read] {"file_path": "src/a.py", "limit": null}', "c2"), Said("tool Read", new, "r2"),
    )  # fmt: skip
    (version,) = memory.store.chunk_versions(chunk)
    assert "old_name" not in version.text
    assert "src/a.py as it was then" in version.text
    assert new.strip() in version.text


def test_reconciling_again_after_forgetting_makes_no_statement_twice(memory: Memory) -> None:
    chunk = kept(memory, say("I live in Lyon.", 100.0), say("my parrot is called Quasimodo", 101.0))
    gone = memory.forget([memory.store.turns_of_chunk(chunk)[1].id])
    assert gone.changed_chunk_ids == (chunk,)
    assert memory.store.chunk_versions(chunk) == []
    task = reconcile.prepare(memory, chunk)
    reconcile.store(memory, task, task.extractive)
    assert standing(memory) == [("Lyon", True)]
    (version,) = memory.store.chunk_versions(chunk)
    assert "Quasimodo" not in version.text


def test_what_was_forgotten_while_it_was_reconciled_is_not_written(memory: Memory) -> None:
    ingest.remember(memory, "user", "s", [say("my parrot is called Quasimodo"), say("rent is due on Monday 4")])
    (chunk,) = chunks.seal(memory, "user")
    task = reconcile.prepare(memory, chunk)
    memory.forget([task.turns[0].id])
    assert reconcile.store(memory, task, task.extractive) == []
    assert memory.store.chunk_versions(chunk) == []
    assert [waiting.id for waiting in memory.store.waiting_chunks()] == [chunk]


def test_every_version_stays(memory: Memory) -> None:
    chunk = kept(memory, say("I live in Lyon, near the old harbour."))
    task = reconcile.prepare(memory, chunk)
    reconcile.store(memory, task, reconcile.Outcome("Ann lives in Lyon", 0.4, (), "model"))
    assert [(v.version, v.made_by) for v in memory.store.chunk_versions(chunk)] == [(1, "extractive"), (2, "model")]


def test_terms_are_counted_before_a_row_as_by_hand() -> None:
    draw = np.random.default_rng(3)
    postings = Postings()
    naive: dict[int, list[int]] = {}
    for row in range(3000):
        terms = draw.integers(0, 400, 40).astype(np.uint32)
        postings.add(np.full(40, row, np.int32), terms)
        for term in set(terms.tolist()):
            naive.setdefault(term, []).append(row)
    assert postings.counts_before([], 10) == []
    for row in (0, 1, 700, 2600, 2999, 4000):
        asked = draw.permutation(450)[:60].tolist()
        expected = [sum(one < row for one in naive.get(term, ())) for term in asked]
        assert postings.counts_before(asked, row) == expected


def test_equal_memories_are_compacted_equally(memory: Memory, tmp_path: Path) -> None:
    said = [say(f"Marco {n} restores violins, and my sister sells number {n * 7}", float(n)) for n in range(40)]
    first = kept(memory, *said)
    store = open_memory_store(tmp_path / "other.sqlite", SystemClock())
    other = Memory(store, HashedWords())
    second = kept(other, *said)
    assert memory.store.chunk_versions(first)[0].text == store.chunk_versions(second)[0].text
    store.close()
