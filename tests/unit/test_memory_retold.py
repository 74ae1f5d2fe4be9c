"""Forgetting reaches what models wrote with words of what is forgotten, also where they named other turns as its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from akashic_daemon.memory import chunks, ingest, reconcile
from akashic_daemon.memory.extents import open_extents
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.memory.reconcile import Outcome, Task
from akashic_daemon.store.memory.rows import NewRecord
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock
from hashed_words import HashedWords

SECRET = "Remember that the parrot of Ann is called Quasimodo."
LATER = "The parrot of Ann moved to Lyon."


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    clock = SystemClock()
    opened = Memory(open_memory_store(tmp_path / "memory.sqlite", clock), HashedWords())
    opened.extents = open_extents(tmp_path / "extents", clock)
    yield opened
    opened.extents.close()
    opened.store.close()


def prepared(memory: Memory, *texts: str) -> Task:
    """Make a sealed chunk of what was said, and read it with what is related to it."""
    ingest.remember(memory, "user", "s", [Said("Ann", text, text) for text in texts])
    (chunk,) = chunks.seal(memory, "user")
    return reconcile.prepare(memory, chunk)


def write(memory: Memory, task: Task, text: str) -> int:
    """Keep a fact as a model's that rests on the chunk's last turn, and return the chunk."""
    record = NewRecord(text, (task.turns[-1].id,))
    reconcile.store(memory, task, Outcome(text, 0.5, (record,), "a model"))
    return task.chunk.id


def texts_of(memory: Memory, chunk_id: int) -> list[str]:
    store = memory.store
    versions = [one.text for one in store.chunk_versions(chunk_id)]
    return versions + [one.text for one in store.records_of_chunk(chunk_id)]


def in_files(folder: Path, text: str) -> bool:
    return any(text.encode() in file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_a_fact_of_another_chunk_goes_with_the_turn_whose_word_it_has(memory: Memory, tmp_path: Path) -> None:
    first = prepared(memory, SECRET, "Rent is due on Monday.")
    reconcile.store(memory, first, first.extractive)
    task = prepared(memory, LATER)
    assert "Quasimodo" in task.related[0].text
    second = write(memory, task, "The parrot Quasimodo moved to Lyon.")
    third = write(memory, prepared(memory, "The heron nests at the mill."), "The heron nests at the mill.")
    planned = memory.plan_forgetting([first.turns[0].id])
    gone = memory.forget([first.turns[0].id])
    assert gone == planned
    assert gone.changed_chunk_ids == (first.chunk.id, second)
    assert [chunk.id for chunk in memory.store.waiting_chunks()] == [first.chunk.id, second]
    assert texts_of(memory, second) == []
    assert len(texts_of(memory, third)) == 2
    assert not in_files(tmp_path, "Quasimodo")
    again = reconcile.prepare(memory, second)
    assert "Quasimodo" not in "".join(related.text for related in again.related)


def test_a_fact_of_its_own_chunk_goes_though_it_names_another_turn(memory: Memory, tmp_path: Path) -> None:
    task = prepared(memory, SECRET, LATER)
    chunk = write(memory, task, "The parrot Quasimodo moved to Lyon.")
    memory.forget([task.turns[0].id])
    assert texts_of(memory, chunk) == []
    assert not in_files(tmp_path, "Quasimodo")


def test_a_fact_whose_words_others_said_too_stays(memory: Memory) -> None:
    first = prepared(memory, LATER.upper() + " Really.")
    reconcile.store(memory, first, replace(first.extractive, records=()))
    second = write(memory, prepared(memory, LATER), LATER)
    assert memory.forget([first.turns[0].id]).changed_chunk_ids == ()
    assert texts_of(memory, second) == [LATER, LATER]


def test_what_a_model_was_shown_and_is_forgotten_before_it_answers_leaves_the_chunk_waiting(memory: Memory) -> None:
    first = prepared(memory, SECRET, "Rent is due on Monday.")
    reconcile.store(memory, first, first.extractive)
    task = prepared(memory, LATER)
    memory.forget([first.turns[0].id])
    second = write(memory, task, "The parrot Quasimodo moved to Lyon.")
    assert texts_of(memory, second) == []
    assert second in {chunk.id for chunk in memory.store.waiting_chunks()}


def test_lines_that_were_left_out_because_a_turn_had_them_come_back_when_it_goes(memory: Memory) -> None:
    log = "".join(f"12:00:{n:02} INFO copying volume vol-{n * 37} done\n" for n in range(30))
    first = prepared(memory, log)
    reconcile.store(memory, first, first.extractive)
    second = prepared(memory, log + "12:01:00 ERROR volume vol-9999 failed\n")
    reconcile.store(memory, second, second.extractive)
    assert f"lines as in turn {first.turns[0].id}" in texts_of(memory, second.chunk.id)[0]
    assert memory.forget([first.turns[0].id]).changed_chunk_ids == (second.chunk.id,)
    assert [chunk.id for chunk in memory.store.waiting_chunks()] == [second.chunk.id]
    again = reconcile.prepare(memory, second.chunk.id)
    assert "vol-37 " in again.extractive.text
