"""The block store: what is put comes back whole, in order, or as a miss that says why."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from akashic_daemon.errors import Conflict, StoreError
from akashic_daemon.store.blocks.compaction import compact
from akashic_daemon.store.blocks.extents import LANES
from akashic_daemon.store.blocks.record import Entry, Found, Miss, MissReason, RefusalReason
from akashic_daemon.store.blocks.store import BlockStore
from block_stores import FakeClock, open_store, read_group, record


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    store = open_store(tmp_path)
    yield store
    store.close()


def payload_of(found: Found | Miss) -> bytes:
    assert isinstance(found, Found), found
    return bytes(found.payload)


def reason_of(found: Found | Miss) -> MissReason:
    assert isinstance(found, Miss), found
    return found.reason


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 70_000, 300_000])
def test_a_payload_of_any_size_comes_back_whole_also_after_opening_again(tmp_path: Path, size: int) -> None:
    one = record("k", size_bytes=size, token_ids=b"\x01\x00\x00\x00")
    store = open_store(tmp_path)
    put = store.put([one])
    assert (put.stored, put.known, put.refusal) == (1, 0, None)
    assert payload_of(store.get("k")) == one.payload
    store.close()
    again = open_store(tmp_path)
    found = again.get("k")
    assert isinstance(found, Found)
    assert bytes(found.payload) == one.payload
    assert (found.entry.token_ids, found.entry.fingerprint, found.entry.kind) == (one.token_ids, "fp", one.kind)
    assert again.get("other") == Miss("other", MissReason.ABSENT, "it isn't stored")
    again.close()


def test_a_payload_is_read_into_the_callers_buffer_and_no_further(store: BlockStore) -> None:
    one = record("k", size_bytes=9000)
    store.put([one])
    buffer = bytearray(b"\xaa" * 9010)
    assert payload_of(store.get("k", buffer)) == one.payload
    assert buffer[:9000] == one.payload
    assert buffer[9000:] == b"\xaa" * 10
    assert reason_of(store.get("k", bytearray(8999))) is MissReason.BUFFER


def test_a_group_is_read_in_order_however_it_was_written(store: BlockStore) -> None:
    chance = random.Random(3)
    records = [
        record(f"{g}{i}", group=g, sequence=i, size_bytes=chance.choice([50, 6000])) for g in "ab" for i in range(9)
    ]
    chance.shuffle(records)
    for at in range(0, len(records), 4):
        store.put(records[at : at + 4])
    for group in "ab":
        with read_group(store, group) as reads:
            got = list(reads)
        assert [f.entry.key for f in got if isinstance(f, Found)] == [f"{group}{i}" for i in range(9)]
        assert [e.key for e in store.entries(group)] == [f"{group}{i}" for i in range(9)]


def test_groups_written_in_turn_lie_each_in_an_extent_of_its_own(store: BlockStore) -> None:
    for i in range(6):
        for group in "abc":
            store.put([record(f"{group}{i}", group=group, sequence=i)])
    assert len(store.extents) == 3
    rows = store.database.connection.execute(
        "SELECT count(DISTINCT extent_id) FROM records r JOIN members m ON m.record_id = r.id GROUP BY group_name"
    ).fetchall()
    assert rows == [(1,), (1,), (1,)]


def test_a_group_is_read_with_one_call_where_it_lies_together(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put([record(f"k{i}", sequence=i, size_bytes=8000) for i in range(20)])
    reads_before = store.extents.files.calls["read"]  # type: ignore[attr-defined]
    with read_group(store, "g") as reads:
        assert len(list(reads)) == 20
    assert store.extents.files.calls["read"] == reads_before + 1  # type: ignore[attr-defined]
    store.close()


def test_a_reader_may_pass_records_over(store: BlockStore) -> None:
    store.put([record(f"k{i}", sequence=i) for i in range(4)])

    def into(entry: Entry) -> bytearray | None:
        return None if entry.key == "k1" else bytearray(entry.size_bytes)

    with read_group(store, "g", into) as reads:
        assert [f.entry.key for f in reads if isinstance(f, Found)] == ["k0", "k2", "k3"]


def test_a_record_of_two_groups_is_stored_once_and_lives_as_long_as_one_of_them(store: BlockStore) -> None:
    store.put([record("shared", group="a")])
    used = store.bytes_used
    put = store.put([record("shared", group="b", sequence=4)])
    assert (put.stored, put.known) == (0, 1)
    assert store.bytes_used == used
    assert store.delete_group("a").records == 0
    assert payload_of(store.get("shared"))
    assert [e.key for e in store.entries("b")] == ["shared"]
    assert store.delete_group("b").records == 1
    assert reason_of(store.get("shared")) is MissReason.ABSENT


def test_a_batch_over_the_budget_is_refused_with_numbers_before_anything_is_written(tmp_path: Path) -> None:
    store = open_store(tmp_path, budget_bytes=160_000)
    assert store.put([record("k0", size_bytes=90_000)]).refusal is None
    used = store.bytes_used
    writes = store.extents.files.calls["write"]  # type: ignore[attr-defined]
    refusal = store.put([record("k1", size_bytes=30_000), record("k2", size_bytes=40_000)]).refusal
    assert refusal is not None
    assert refusal.reason is RefusalReason.BUDGET
    assert refusal.needed_bytes > refusal.free_bytes == store.free_bytes
    assert store.extents.files.calls["write"] == writes  # type: ignore[attr-defined]
    assert store.bytes_used == used
    assert reason_of(store.get("k1")) is MissReason.ABSENT
    store.close()


def test_the_bytes_used_are_those_of_the_files_and_of_what_stands_in_the_index(
    store: BlockStore, tmp_path: Path
) -> None:
    store.put([record(f"k{i}", sequence=i, size_bytes=[100, 5000][i % 2]) for i in range(10)])
    store.delete(["k0", "k1"])
    on_disk = sum(f.stat().st_size for f in (tmp_path / "extents").iterdir())
    assert store.bytes_used == on_disk + 4 * 100
    assert store.stats().dead_bytes == 5000 + 56


def test_after_deletion_and_compaction_no_byte_of_a_payload_is_in_any_file(store: BlockStore, tmp_path: Path) -> None:
    def files_with(text: bytes) -> list[str]:
        return [f.name for f in tmp_path.rglob("*") if f.is_file() and text in f.read_bytes()]

    for group, text in (("gone", b"Xq7-secret-"), ("stays", b"harmless-")):
        for i, size in enumerate((300, 9000, 2000, 50_000)):
            payload = (text * size)[:size]
            store.put([record(f"{group}{i}", group=group, sequence=i, payload=payload, token_ids=text * 9)])
    store.put([record("mixed0", group="gone", payload=b"Xq7-secret-" * 600), record("mixed1", group="stays")])
    assert len(files_with(b"Xq7-secret-")) >= 2
    store.delete_group("gone")
    done = compact(store)
    assert (done.left, done.held_by_readers) == ((), ())
    assert files_with(b"Xq7-secret-") == []
    assert len(files_with(b"harmless-")) >= 2
    with read_group(store, "stays") as reads:
        assert all(isinstance(f, Found) for f in reads)
    assert store.stats().dead_bytes == 0


def test_compaction_brings_a_scattered_group_together(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    groups = [f"g{n}" for n in range(12)]
    for i in range(4):
        for group in groups:
            store.put([record(f"{group}.{i}", group=group, sequence=i), record(f"{group}.x{i}", group="x", sequence=i)])
    store.delete_group("x")
    store.delete([f"{group}.3" for group in groups])
    compact(store)
    rows = store.database.connection.execute(
        "SELECT m.group_name FROM records r JOIN members m ON m.record_id = r.id ORDER BY extent_id, offset_bytes"
    ).fetchall()
    order = [name for (name,) in rows]
    assert order == sorted(order)
    store.close()


def test_a_reader_keeps_its_files_until_it_lets_go(store: BlockStore) -> None:
    store.put([record(f"k{i}", sequence=i) for i in range(3)])
    old = [e.path for e in store.extents]
    with read_group(store, "g") as reads:
        store.delete(["k1"])
        assert compact(store).held_by_readers == (1,)
        assert all(path.exists() for path in old)
        assert [payload_of(f) for f in reads] == [record(f"k{i}").payload for i in range(3)]
    assert not any(path.exists() for path in old)
    assert store.bytes_used == sum(e.path.stat().st_size for e in store.extents)


def test_reads_and_joins_are_counted_and_a_clock_that_goes_back_makes_nothing_older(tmp_path: Path) -> None:
    clock = FakeClock(100.0)
    store = open_store(tmp_path, clock=clock)
    store.put([record("a"), record("b", sequence=1)])
    clock.now = 200.0
    store.get("a")
    store.get("a")
    store.join("g", ["b"])
    store.flush()
    clock.now = 50.0
    store.get("a")
    store.flush()
    a, b = store.entries("g")
    assert (a.read_count, a.read_at_s, a.created_at_s) == (3, 200.0, 100.0)
    assert (b.read_count, b.read_at_s) == (0, 200.0)
    assert store.stats().never_read_bytes == b.size_bytes
    assert store.stats().counters["read_bytes"] == 3 * a.size_bytes
    store.close()


def test_an_eviction_is_counted_with_what_was_never_read(store: BlockStore) -> None:
    store.put([record("a"), record("b", sequence=1)])
    store.get("a")
    size = len(record("a").payload)
    assert store.delete(["a", "b"], is_eviction=True).records == 2
    counters = store.stats().counters
    assert (counters["evicted_records"], counters["evicted_bytes"]) == (2, 2 * size)
    assert counters["evicted_unread_bytes"] == size


def test_a_second_process_is_refused(store: BlockStore, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="another process"):
        open_store(tmp_path)
    store.put([record("k")])
    store.close()
    open_store(tmp_path).close()


def test_extents_whose_index_is_lost_are_left_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put([record("k")])
    store.close()
    for file in tmp_path.glob("blocks.sqlite*"):
        file.unlink()
    before = [f.read_bytes() for f in (tmp_path / "extents").iterdir()]
    with pytest.raises(StoreError, match="missing"):
        open_store(tmp_path)
    assert [f.read_bytes() for f in (tmp_path / "extents").iterdir()] == before
    assert not (tmp_path / "blocks.sqlite").exists()


def test_a_group_may_be_read_on_another_thread_while_the_store_compacts_and_deletes(store: BlockStore) -> None:
    store.put([record(f"k{i}", sequence=i, size_bytes=9000) for i in range(20)])
    may_go_on = Event()
    with read_group(store, "g") as reads, ThreadPoolExecutor(1) as pool:

        def read() -> list[bytes]:
            assert may_go_on.wait(30)
            return [payload_of(found) for found in reads]

        reading = pool.submit(read)
        store.delete([f"k{i}" for i in range(0, 20, 2)])
        compact(store)
        store.delete_group("g")
        may_go_on.set()
        assert reading.result() == [record(f"k{i}", size_bytes=9000).payload for i in range(20)]
    assert len(store.extents) == 0
    assert list(store.extents.folder.iterdir()) == []
    store.flush()  # the reads of rows that are gone
    assert store.stats().counters["read_records"] == 20


def test_more_groups_than_lanes_are_all_stored_and_none_needs_a_file_of_its_own(store: BlockStore) -> None:
    for i in range(3):
        for n in range(30):
            store.put([record(f"{n}.{i}", group=f"g{n}", sequence=i)])
    assert len(store.extents) <= LANES + 1
    for n in range(30):
        assert [e.key for e in store.entries(f"g{n}")] == [f"{n}.{i}" for i in range(3)]
        with read_group(store, f"g{n}") as reads:
            assert all(isinstance(f, Found) for f in reads)


def test_a_batch_that_names_a_record_twice_stores_it_once(store: BlockStore) -> None:
    put = store.put([record("k", group="a"), record("k", group="b", sequence=2), record("k", group="b", sequence=3)])
    assert (put.stored, put.known) == (1, 0)
    assert [len(store.entries(group)) for group in "ab"] == [1, 2]
    assert store.delete_group("b").records == 0
    assert store.delete_group("a").records == 1


def test_records_are_read_in_the_order_of_the_keys_and_absent_ones_left_out(store: BlockStore) -> None:
    store.put([record(f"k{i}", sequence=i) for i in range(4)])
    with store.read(["k3", "k1", "nothing", "k0"]) as reads:
        assert [f.entry.key for f in reads if isinstance(f, Found)] == ["k3", "k1", "k0"]


def test_a_record_larger_than_an_extent_has_one_of_its_own(store: BlockStore) -> None:
    large = record("large", sequence=1, size_bytes=store.extent_bytes * 2)
    store.put([record("k0"), large, record("k2", sequence=2)])
    assert len(store.extents) == 3
    assert payload_of(store.get("large")) == large.payload


def test_a_store_is_private_and_a_second_close_does_nothing(store: BlockStore, tmp_path: Path) -> None:
    store.put([record("k")])
    files = [f for f in tmp_path.rglob("*") if f.is_file()]
    assert {f.stat().st_mode & 0o777 for f in files} == {0o600}
    assert (tmp_path / "extents").stat().st_mode & 0o777 == 0o700
    store.close()
    store.close()
