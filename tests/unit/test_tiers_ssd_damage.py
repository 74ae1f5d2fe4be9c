"""The SSD tier: damage, forgetting, and what is said when its disk doesn't work."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from pathlib import Path
from unittest import mock

import pytest

from akashic_daemon.errors import AkashicError, Conflict, StoreError, StoreTooNew, StoreUnwritable
from akashic_daemon.store.blocks.record import Miss, MissReason
from akashic_daemon.tiers.ssd import SsdTier, tier_problem
from block_stores import payload
from ssd_tiers import BUDGET, SIZE, TwoClocks, block, blocks, found, fresh, have, open_tier

# -- damage ------------------------------------------------------------------------------------------------------


def test_a_flipped_byte_is_a_miss_that_is_reported_quarantined_and_can_be_stored_anew(
    tmp_path: Path, clock: TwoClocks, caplog: pytest.LogCaptureFixture
) -> None:
    tier = open_tier(tmp_path, clock)
    tier.write(blocks("a", 3))
    file = next((tmp_path / "extents").iterdir())
    raw = bytearray(file.read_bytes())
    at = bytes(raw).index(payload("a1", SIZE))
    raw[at + 777] ^= 4
    file.write_bytes(raw)
    with caplog.at_level(logging.WARNING):
        assert found(tier, ["a0", "a1", "a2"]) == {
            "a0": payload("a0", SIZE),
            "a1": MissReason.DAMAGED,
            "a2": payload("a2", SIZE),
        }
    assert "a1" in caplog.text
    assert tier.evicted() == ["a1"]
    assert have(tier) == ["a0", "a2"]
    assert tier.stats().evictions["damaged"] == 1
    assert tier.write(blocks("a", 3)).stored == 1
    assert found(tier, ["a1"]) == {"a1": payload("a1", SIZE)}
    tier.close()


def test_a_damaged_label_of_a_block_without_kv_is_not_given(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock)
    tier.write([block("a0", size=0), block("a1", sequence=1, size=0)])
    tier.close()
    with sqlite3.connect(tmp_path / "blocks.sqlite") as c:
        c.execute("UPDATE records SET token_ids = CAST('label of a9' AS BLOB) WHERE key = 'a1'")
    c.close()
    tier = open_tier(tmp_path, clock)
    assert have(tier) == ["a0"]
    assert tier.stats().evictions["damaged"] == 1
    assert tier.evicted() == ["a1"]
    tier.close()


def test_verify_finds_damage_and_mends_it_where_asked(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock)
    tier.write(blocks("a", 2))
    file = next((tmp_path / "extents").iterdir())
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert [f.subject for f in tier.verify()] == ["record a1"]
    assert have(tier) == ["a0", "a1"]
    assert [f.subject for f in tier.verify(fix=True)] == ["record a1"]
    assert (have(tier), tier.evicted(), tier.verify()) == (["a0"], ["a1"], [])
    tier.close()


# -- what users ask for ------------------------------------------------------------------------------------------


def test_forgetting_is_real_once_pruned(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock)
    tier.write([*blocks("a", 3), block("label", "a", 9, size=0)])
    tier.write(blocks("b", 3))
    used = tier.stats().used_bytes
    gone = tier.forget_group("a")
    assert (gone.records, set(gone.keys)) == (4, {"a0", "a1", "a2", "label"})
    pruned = tier.prune()
    assert (pruned.left, pruned.removed.records) == (0, 0)
    assert tier.stats().used_bytes <= used - 3 * SIZE
    everything = b"".join(f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())
    assert payload("b0", SIZE) in everything
    for key in ("a0", "a1", "a2"):
        assert payload(key, SIZE)[:64] not in everything
        assert f"label of {key}".encode() not in everything
    assert b"label of label" not in everything
    assert found(tier, ["b0", "a0"]) == {"b0": payload("b0", SIZE), "a0": MissReason.ABSENT}
    tier.close()


def test_prune_removes_what_was_unused_for_long_or_belongs_to_other_models_or_everything(
    tier: SsdTier, clock: TwoClocks
) -> None:
    tier.write([*blocks("a", 2), block("x", "x", fingerprint="other")])
    clock.pass_s(100)
    tier.write(blocks("b", 2))
    list(tier.read(["a1"], fresh))
    assert set(tier.prune(unused_for_s=100, other_than="fp").removed.keys) == set()
    assert tier.prune(unused_for_s=50, other_than="fp").removed.keys == ("x",)
    assert tier.prune(unused_for_s=50).removed.keys == ("a0",)
    assert tier.prune(other_than="fp").removed.keys == ()
    assert set(tier.prune(everything=True, unused_for_s=50).removed.keys) == {"a1", "b0", "b1"}
    assert (have(tier), tier.stats().used_bytes) == ([], 0)
    assert tier.stats().evictions == {"budget": 0, "damaged": 0, "removed": 5}


@pytest.mark.parametrize("to_bytes", [0, 5 * SIZE, 20 * SIZE, 2 * BUDGET])
def test_prune_brings_the_tier_below_a_size_from_the_coldest_tails(
    tier: SsdTier, clock: TwoClocks, to_bytes: int
) -> None:
    tier.write(blocks("a", 10))
    clock.pass_s(10)
    tier.write(blocks("b", 10))
    pruned = tier.prune(to_bytes=to_bytes)
    assert tier.stats().used_bytes <= max(to_bytes, 0)
    left = have(tier)
    assert set(left) | set(pruned.removed.keys) == {f"{g}{n}" for g in "ab" for n in range(10)}
    assert len(left) == {0: 0, 5 * SIZE: 4, 20 * SIZE: 19, 2 * BUDGET: 20}[to_bytes]
    assert "a9" not in left or to_bytes == 2 * BUDGET


def test_the_figures_tell_what_was_written_read_back_and_never_read(tier: SsdTier) -> None:
    tier.write(blocks("a", 4))
    list(tier.read(["a0", "a1"], fresh))
    list(tier.read(["a0"], fresh))
    stats = tier.stats()
    assert (stats.records, stats.written_records, stats.written_bytes) == (4, 4, 4 * SIZE)
    assert (stats.read_back_records, stats.read_back_bytes, stats.never_read_bytes) == (3, 3 * SIZE, 2 * SIZE)
    assert stats.day_written_bytes == 4 * SIZE


# -- opening -----------------------------------------------------------------------------------------------------


def problem(folder: Path, clock: TwoClocks) -> tuple[type[AkashicError], str]:
    with pytest.raises(AkashicError) as raised:
        open_tier(folder, clock)
    return raised.type, tier_problem(raised.value)


def test_a_store_of_a_newer_version_is_left_as_it_is_and_said_so(tmp_path: Path, clock: TwoClocks) -> None:
    open_tier(tmp_path, clock).close()
    with sqlite3.connect(tmp_path / "blocks.sqlite") as c:
        c.execute("PRAGMA user_version = 99")
    c.close()
    before = (tmp_path / "blocks.sqlite").read_bytes()
    kind, words = problem(tmp_path, clock)
    assert kind is StoreTooNew
    assert words.startswith("The SSD tier is off because its store was written by a newer akashic")
    assert "upgrade akashic" in words
    assert (tmp_path / "blocks.sqlite").read_bytes() == before


def test_a_damaged_store_is_left_as_it_is_and_said_so(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock)
    tier.write(blocks("a", 3))
    tier.close()
    (tmp_path / "blocks.sqlite").write_bytes(b"not a database" * 1000)
    kind, words = problem(tmp_path, clock)
    assert kind is StoreError
    assert "its store can't be read" in words
    assert len(list((tmp_path / "extents").iterdir())) == 1


def test_a_lost_index_is_not_made_anew_beside_its_extents(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock)
    tier.write(blocks("a", 3))
    tier.close()
    (tmp_path / "blocks.sqlite").unlink()
    assert problem(tmp_path, clock)[0] is StoreError


def test_a_second_process_is_refused_and_said_so(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock)
    kind, words = problem(tmp_path, clock)
    assert kind is Conflict
    assert "another process uses its store" in words
    tier.close()
    open_tier(tmp_path, clock).close()


def test_a_place_that_cannot_be_written_is_said_so(tmp_path: Path, clock: TwoClocks) -> None:
    (tmp_path / "file").write_text("")
    kind, words = problem(tmp_path / "file" / "store", clock)
    assert issubclass(kind, StoreUnwritable)
    assert "its disk can't be written" in words


def test_a_failed_opening_leaves_nothing_locked(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock)
    tier.write(blocks("a", 3))
    tier.close()
    good = (tmp_path / "blocks.sqlite").read_bytes()
    (tmp_path / "blocks.sqlite").write_bytes(b"x" * 5000)
    problem(tmp_path, clock)
    (tmp_path / "blocks.sqlite").write_bytes(good)
    for left in ("blocks.sqlite-wal", "blocks.sqlite-shm"):
        (tmp_path / left).unlink(missing_ok=True)
    tier = open_tier(tmp_path, clock)
    assert have(tier) == ["a0", "a1", "a2"]
    tier.close()


def test_an_empty_folder_that_vanishes_in_use_is_no_crash(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path / "s", clock)
    tier.write(blocks("a", 2))
    shutil.rmtree(tmp_path / "s" / "extents")
    assert found(tier, ["a0"]) == {"a0": MissReason.UNREADABLE}
    assert isinstance(tier.unavailable, StoreError)
    assert tier.stats().unavailable is tier.unavailable
    assert [type(m) for m in tier.read(["zz"], fresh)] == [Miss]
    tier.close()


def test_an_index_that_another_process_keeps_locked_is_a_miss_and_no_error(tier: SsdTier) -> None:
    tier.write(blocks("a", 1))
    locked = Conflict("reading blocks.sqlite: another process is writing to it")
    with mock.patch.object(tier._store.database, "_translated", side_effect=locked):
        assert found(tier, ["a0"]) == {"a0": MissReason.UNREADABLE}
        miss = tier._store.get("a0")
        assert isinstance(miss, Miss)
        assert miss.reason is MissReason.UNREADABLE
        assert tier.unavailable is locked
    assert found(tier, ["a0"]) == {"a0": payload("a0", SIZE)}
    assert tier.unavailable is None
