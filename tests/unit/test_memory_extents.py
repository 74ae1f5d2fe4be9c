"""Chunks in extents: each once, whole, together with what is found with them, and gone when they are forgotten."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from akashic_daemon.errors import StoreUnwritable
from akashic_daemon.memory import chunks, ingest, reconcile
from akashic_daemon.memory import extents as extents_module
from akashic_daemon.memory.extents import ChunkExtents, open_extents
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.store.blocks import compaction
from akashic_daemon.store.blocks.check import check
from akashic_daemon.store.blocks.opening import open_block_store
from akashic_daemon.store.memory.rows import Turn
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock
from hashed_words import HashedWords

EXTENT_BYTES = 32 << 10


@pytest.fixture
def extents(tmp_path: Path) -> Iterator[ChunkExtents]:
    opened = open_extents(tmp_path / "memory", SystemClock(), extent_bytes=EXTENT_BYTES)
    yield opened
    opened.close()


def turn(number: int, text: str) -> Turn:
    return Turn(number, "user", "s", None, number, "Ann", text, None, 10)


def keep(extents: ChunkExtents, chunk_id: int, text: str = "") -> None:
    extents.keep("user", chunk_id, [turn(chunk_id, text or f"chunk {chunk_id} " * 600)], None)


def words(payload: bytes | None) -> str:
    assert payload is not None
    return str(json.loads(payload)["turns"][0][2])


def in_files(folder: Path, text: str) -> bool:
    return any(text.encode() in file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_a_chunk_is_read_as_it_was_kept_and_kept_again_it_replaces_itself(extents: ChunkExtents) -> None:
    keep(extents, 1, "old words " * 600)
    keep(extents, 1, "new words " * 600)
    assert words(extents.read("user", 1)) == "new words " * 600
    assert extents.chunks("user") == {1}
    assert extents.read("user", 2) is None
    assert extents.read("project:p", 1) is None


def test_a_dropped_chunk_is_in_no_file_and_the_others_stand(extents: ChunkExtents, tmp_path: Path) -> None:
    keep(extents, 1, "the parrot Quasimodo " * 300)
    keep(extents, 2, "the parrot Esmeralda " * 300)
    keep(extents, 3, "Quasimodo, shortly")
    assert in_files(tmp_path, "Quasimodo")
    extents.drop("user", [1, 3, 99])
    assert not in_files(tmp_path, "Quasimodo")
    assert words(extents.read("user", 2)).startswith("the parrot Esmeralda")


def test_text_whose_wiping_failed_is_wiped_by_the_next_removal_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extents = open_extents(tmp_path / "memory", SystemClock(), extent_bytes=EXTENT_BYTES)
    keep(extents, 1, "the parrot Quasimodo " * 300)
    keep(extents, 2, "the parrot Esmeralda " * 300)
    with monkeypatch.context() as patched:
        patched.setattr(extents_module, "compact", Mock(side_effect=StoreUnwritable("writing: the disk is full")))
        with pytest.raises(StoreUnwritable):
            extents.drop("user", [1])
    extents.close()
    extents = open_extents(tmp_path / "memory", SystemClock(), extent_bytes=EXTENT_BYTES)
    extents.drop("user", [1])
    assert not in_files(tmp_path, "Quasimodo")
    assert words(extents.read("user", 2)).startswith("the parrot Esmeralda")
    extents.close()


def test_a_place_that_cannot_be_read_names_the_folder_that_may_go(
    extents: ChunkExtents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(extents, 1, "the parrot Quasimodo " * 300)
    keep(extents, 2, "the parrot Esmeralda " * 300)
    monkeypatch.setattr(compaction, "_read", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(StoreUnwritable, match="Input/output error") as refused:
        extents.drop("user", [1])
    assert str(tmp_path / "memory") in str(refused.value.hint)


def paired(extents: ChunkExtents, count: int) -> dict[int, list[int]]:
    """Keep chunks of which those with the same remainder are found together, and return whom each is near to."""
    for chunk_id in range(1, count + 1):
        keep(extents, chunk_id)
    groups = count // 5
    return {
        chunk: [other for other in range(1, count + 1) if other % groups == chunk % groups and other != chunk]
        for chunk in range(1, count + 1)
    }


def test_chunks_that_are_found_together_are_laid_together(extents: ChunkExtents) -> None:
    near = paired(extents, 40)
    before = {chunk: extents.read("user", chunk) for chunk in near}
    done = extents.regroup("user", near, [])
    assert done is not None
    assert done.moved_bytes > 0
    assert done.fan_out_after <= 0.95 * done.fan_out_before
    assert {chunk: extents.read("user", chunk) for chunk in near} == before
    layout = extents.layout("user")
    assert sorted(chunk for here in layout.values() for chunk in here) == sorted(near)
    place = extents.place("user", 1)
    assert place is not None
    assert set(place.neighbours) & set(near[1])
    assert place.neighbours == tuple(chunk for chunk in layout[place.extent] if chunk != 1)


def test_what_lies_together_already_is_not_written_anew(extents: ChunkExtents) -> None:
    for chunk in range(1, 31):
        keep(extents, chunk)
    near = {chunk: [other for other in (chunk - 1, chunk + 1) if 1 <= other <= 30] for chunk in range(1, 31)}
    layout = extents.layout("user")
    done = extents.regroup("user", near, [])
    assert done is not None
    assert done.moved_bytes == 0
    assert extents.layout("user") == layout


def test_it_is_due_again_when_the_namespace_has_doubled_and_writes_stay_under_three_times(
    extents: ChunkExtents,
) -> None:
    regrouped = 0
    for count in range(1, 161):
        keep(extents, count)
        if extents.is_due("user"):
            near = {c: [o for o in range(1, count + 1) if o % 7 == c % 7 and o != c] for c in range(1, count + 1)}
            done = extents.regroup("user", near, [])
            regrouped += done is not None and done.moved_bytes > 0
    assert regrouped >= 2
    assert not extents.is_due("user")
    assert extents.write_amplification <= 3


def test_a_layout_stays_over_a_restart_and_the_store_is_sound(tmp_path: Path) -> None:
    first = open_extents(tmp_path / "memory", SystemClock(), extent_bytes=EXTENT_BYTES)
    first.regroup("user", paired(first, 40), [])
    layout = first.layout("user")
    first.close()
    again = open_extents(tmp_path / "memory", SystemClock(), extent_bytes=EXTENT_BYTES)
    assert again.layout("user") == layout
    assert not again.is_due("user")
    again.close()
    store = open_block_store(tmp_path / "memory", budget_bytes=1 << 40, clock=SystemClock())
    assert check(store) == []
    store.close()


# -- with memory -----------------------------------------------------------------------------------------------


@pytest.fixture
def memory(tmp_path: Path, extents: ChunkExtents) -> Iterator[Memory]:
    store = open_memory_store(tmp_path / "memory.sqlite", SystemClock())
    opened = Memory(store, HashedWords())
    opened.extents = extents
    yield opened
    store.close()


def reconciled(memory: Memory, *texts: str) -> int:
    said = [Said("Ann", text, str(hash(text))) for text in texts]
    ingest.remember(memory, "user", "s", said)
    (chunk,) = chunks.seal(memory, "user")
    task = reconcile.prepare(memory, chunk)
    reconcile.store(memory, task, task.extractive)
    return chunk


def test_a_reconciled_chunk_stands_whole_with_its_compacted_text(memory: Memory, extents: ChunkExtents) -> None:
    chunk = reconciled(memory, "my parrot is called Quasimodo", "he eats 7 mangoes a day")
    payload = json.loads(extents.read("user", chunk) or b"")
    assert [said[2] for said in payload["turns"]] == ["my parrot is called Quasimodo", "he eats 7 mangoes a day"]
    assert payload["text"] == memory.store.chunk_versions(chunk)[-1].text


def test_forgetting_a_turn_takes_its_chunk_out_until_it_is_reconciled_again(
    memory: Memory, extents: ChunkExtents, tmp_path: Path
) -> None:
    chunk = reconciled(memory, "my parrot is called Quasimodo", "he eats 7 mangoes a day")
    other = reconciled(memory, "rent is due on Monday 4")
    memory.forget([memory.store.turns_of_chunk(chunk)[0].id])
    assert extents.chunks("user") == {other}
    assert not in_files(tmp_path, "Quasimodo")
    task = reconcile.prepare(memory, chunk)
    reconcile.store(memory, task, task.extractive)
    assert extents.chunks("user") == {chunk, other}
