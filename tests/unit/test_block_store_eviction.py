"""What goes when the budget is full: the longest unused groups, from their tails."""

from __future__ import annotations

from pathlib import Path

from akashic_daemon.store.blocks.check import check
from akashic_daemon.store.blocks.eviction import coldest, make_room
from akashic_daemon.store.blocks.index import Usage
from akashic_daemon.store.blocks.record import Found
from block_stores import FakeClock, open_store, record


def usage(key: str, group: str, sequence: int, used_at_s: float) -> Usage:
    return Usage(key, group, sequence, 100, used_at_s)


OLD = [usage(f"old{i}", "old", i, 10.0 - i) for i in range(3)]
NEW = [usage(f"new{i}", "new", i, 5.0 if i else 50.0) for i in range(3)]


def test_the_longest_unused_group_goes_first_from_its_tail() -> None:
    assert coldest([*NEW, *OLD], 150) == ["old2", "old1"]
    assert coldest([*NEW, *OLD], 301) == ["old2", "old1", "old0", "new2"]


def test_no_more_goes_than_is_needed_and_nothing_where_nothing_is() -> None:
    assert coldest(OLD, 0) == []
    assert coldest(OLD, 100) == ["old2"]
    assert coldest([], 100) == []


def test_a_group_that_is_kept_keeps_also_what_it_shares() -> None:
    shared = [usage("old0", "new", 7, 10.0)]
    assert coldest([*OLD, *NEW, *shared], 10_000, keep={"new"}) == ["old2", "old1"]


def test_a_shared_record_goes_with_the_group_that_was_used_last() -> None:
    shared = [usage("old2", "new", 9, 8.0)]
    assert coldest([*OLD, *NEW, *shared], 10_000) == ["old1", "old0", "old2", "new2", "new1", "new0"]


def test_room_is_made_within_the_budget_and_the_newest_group_stays(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, budget_bytes=1 << 20, clock=clock)
    last = 0
    for last in range(60):
        clock.now += 1
        batch = [record(f"{last}.{i}", group=f"g{last}", sequence=i, size_bytes=9000) for i in range(4)]
        put = store.put(batch)
        if put.refusal is not None:
            room = make_room(store, put.refusal.needed_bytes, keep={f"g{last - 1}"})
            assert room.is_enough
            assert room.evicted.records > 0
            assert store.put(batch).refusal is None
        assert store.bytes_used <= store.budget_bytes
    assert all(isinstance(store.get(f"{n}.{i}"), Found) for n in (last, last - 1) for i in range(4))
    assert store.entries("g0") == []
    assert store.stats().counters["evicted_records"] > 100
    assert check(store) == []
    store.close()


def test_room_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    store = open_store(tmp_path, budget_bytes=1 << 20)
    store.put([record("k", size_bytes=9000)])
    assert not make_room(store, 2 << 20, keep={"g"}).is_enough
    assert isinstance(store.get("k"), Found)
    store.close()


def test_a_budget_that_was_lowered_below_what_is_stored_holds_again_once_room_is_made(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for n in range(6):
        store.put([record(f"{n}.{i}", group=f"g{i % 3}", sequence=n, size_bytes=30_000) for i in range(9)])
    store.close()
    store = open_store(tmp_path, budget_bytes=400_000)
    assert store.bytes_used > 1_500_000
    assert store.free_bytes == 0
    refusal = store.put([record("new")]).refusal
    assert refusal is not None
    assert make_room(store, refusal.needed_bytes).is_enough
    assert store.put([record("new")]).stored == 1
    assert store.bytes_used <= store.budget_bytes
    assert len(store.entries("g2")) > 0
    assert check(store) == []
    store.close()
