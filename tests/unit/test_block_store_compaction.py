"""Compaction keeps to the budget, copies nothing damaged, and leaves alone what isn't worth it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from akashic_daemon.errors import StoreUnwritable
from akashic_daemon.store.blocks import slices
from akashic_daemon.store.blocks.check import check
from akashic_daemon.store.blocks.compaction import compact
from akashic_daemon.store.blocks.record import Compacted, Found, Miss, MissReason
from block_stores import CountingFiles, WatchedFiles, open_store, record


def test_a_full_store_compacts_step_by_step_within_its_budget(tmp_path: Path) -> None:
    files = WatchedFiles(tmp_path / "extents")
    store = open_store(tmp_path, budget_bytes=400_000, files=files)
    count = 0
    while store.put([record(f"k{count}", group=f"g{count % 5}", sequence=count, size_bytes=7000)]).refusal is None:
        count += 1
    store.delete([f"k{i}" for i in range(0, count, 3)])
    full = store.bytes_used
    assert full > 340_000
    done = compact(store)
    assert done.left == ()
    assert files.most_bytes <= 400_000
    assert done.moved_bytes > 2 * (400_000 - full), "more than one step was needed"
    assert done.freed_bytes == full - store.bytes_used > 100_000
    assert store.stats().dead_bytes == 0
    assert check(store) == []
    assert all(isinstance(store.get(f"k{i}"), Found) for i in range(count) if i % 3)
    store.close()


def test_a_damaged_record_is_quarantined_instead_of_copied(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put([record(f"k{i}", sequence=i) for i in range(3)])
    file = tmp_path / "extents" / "0001.ext"
    raw = bytearray(file.read_bytes())
    raw[200] ^= 1
    file.write_bytes(raw)
    store.delete(["k2"])
    assert compact(store).quarantined == 1
    miss = store.get("k0")
    assert isinstance(miss, Miss)
    assert miss.reason is MissReason.ABSENT
    assert isinstance(store.get("k1"), Found)
    assert store.stats().quarantined_now == 1
    assert check(store) == []
    store.close()


def test_an_extent_with_little_dead_is_left_alone_when_asked(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put([record(f"k{i}", sequence=i) for i in range(10)])
    store.delete(["k4"])
    assert compact(store, dead_share=0.25) == Compacted(extents_before=1, extents_after=1)
    assert compact(store, dead_share=0.05).moved_bytes == 9 * 5056
    assert compact(store) == Compacted(extents_before=1, extents_after=1)
    store.close()


def test_an_extent_without_a_live_record_goes_with_the_last_of_them(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put([record(f"{group}{i}", group=group, sequence=i) for group in "ab" for i in range(3)])
    assert len(list((tmp_path / "extents").iterdir())) == 2
    store.delete_group("a")
    assert len(list((tmp_path / "extents").iterdir())) == 1
    assert store.put([record("a0", group="a")]).stored == 1
    assert isinstance(store.get("a0"), Found)
    store.close()


def test_a_layout_says_which_records_lie_in_an_extent_together_and_in_which_order(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put([record(f"k{i}", sequence=i) for i in range(9)])
    layout = [["k7", "k1"], ["k3", "absent", "k0"]]
    assert compact(store, also=[e.number for e in store.extents], layout=layout).moved_bytes == 9 * 5056
    places = store.places("g")
    by_extent: dict[int, list[str]] = {}
    for key in sorted(places, key=lambda key: places[key]):
        by_extent.setdefault(places[key][0], []).append(key)
    assert list(by_extent.values()) == [["k7", "k1"], ["k3", "k0"], ["k2", "k4", "k5", "k6", "k8"]]
    assert all(isinstance(store.get(f"k{i}"), Found) for i in range(9))


def test_between_slices_everything_can_be_read_and_what_is_found_damaged_then_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_BYTES", 11_000)
    store = open_store(tmp_path)
    store.put([record(f"k{i}", sequence=i) for i in range(8)])
    store.delete(["k3"])
    file = tmp_path / "extents" / "0001.ext"
    raw = bytearray(file.read_bytes())
    raw[-100] ^= 1
    file.write_bytes(raw)
    seen: list[list[str]] = []

    def pause() -> None:
        seen.append([k for k in (f"k{i}" for i in range(7)) if isinstance(store.get(k), Found)])
        assert isinstance(store.get("k7"), Miss)

    store.pause = pause
    done = compact(store)
    assert len(seen) >= 4
    assert all(keys == ["k0", "k1", "k2", "k4", "k5", "k6"] for keys in seen)
    assert (done.moved_bytes, done.quarantined, done.extents_after) == (6 * 5056, 0, 1)
    assert store.stats().quarantined_now == 1
    assert check(store) == []
    store.close()


def test_a_disk_that_fails_between_slices_leaves_every_record_where_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_BYTES", 11_000)
    files = CountingFiles()
    store = open_store(tmp_path, files=files)
    store.put([record(f"k{i}", sequence=i) for i in range(8)])
    store.delete(["k3"])
    pauses = itertools.count(1)

    def pause() -> None:
        if next(pauses) == 2:
            files.fail_at = files.fail_at or 3

    store.pause = pause
    with pytest.raises(StoreUnwritable):
        compact(store)
    assert files.failed == 1
    assert check(store) == []
    assert all(isinstance(store.get(f"k{i}"), Found) for i in range(8) if i != 3)
    compact(store)
    assert store.stats().dead_bytes == 0
    assert check(store) == []
    store.close()
