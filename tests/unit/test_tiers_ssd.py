"""The SSD tier: budgets, eviction, the daily writes, what is said when the disk doesn't work, and what is forgotten."""

from __future__ import annotations

import logging
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from akashic_daemon.errors import AkashicError, Conflict, StoreError, StoreTooNew, StoreUnwritable
from akashic_daemon.store.blocks.record import Found, Miss, MissReason
from akashic_daemon.tiers.ssd import Outgoing, Refused, SsdTier, Stored, open_ssd, tier_problem
from akashic_daemon.tiers.wear import DAY_S
from block_stores import CountingFiles, payload

SIZE = 20_000
BUDGET = 1 << 20


class TwoClocks:
    """The wall's time and the monotonic one, set apart."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000.0, 50.0

    def now_s(self) -> float:
        return self.wall

    def monotonic_s(self) -> float:
        return self.steady

    def pass_s(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clock() -> TwoClocks:
    return TwoClocks()


@pytest.fixture
def tier(tmp_path: Path, clock: TwoClocks) -> Iterator[SsdTier]:
    tier = open_tier(tmp_path, clock)
    yield tier
    tier.close()


def open_tier(folder: Path, clock: TwoClocks, *, budget: int = BUDGET, daily: int = 1 << 30) -> SsdTier:
    return open_ssd(folder, budget, daily, clock, CountingFiles())


def block(key: str, group: str = "g", sequence: int = 0, size: int = SIZE, fingerprint: str = "fp") -> Outgoing:
    return Outgoing(key, f"label of {key}".encode(), group, sequence, fingerprint, payload(key, size))


def blocks(group: str, count: int, *, first: int = 0, size: int = SIZE) -> list[Outgoing]:
    return [block(f"{group}{n}", group, n, size) for n in range(first, first + count)]


def fresh(_key: str, size: int) -> memoryview:
    return memoryview(bytearray(size))


def found(tier: SsdTier, keys: list[str]) -> dict[str, bytes | MissReason]:
    out: dict[str, bytes | MissReason] = {}
    for one in tier.read(keys, fresh):
        if isinstance(one, Found):
            out[one.entry.key] = bytes(one.payload)
        else:
            out[one.key] = one.reason
    return out


def have(tier: SsdTier, fingerprint: str = "fp") -> list[str]:
    return [one.key for one in tier.labels(fingerprint)]


# -- what goes in comes out --------------------------------------------------------------------------------------


def test_blocks_come_back_with_their_labels_also_after_opening_again(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock)
    written = tier.write([*blocks("a", 3), block("empty", "a", 3, size=0)])
    assert (written.stored, written.keys, written.refused) == (4, ("a0", "a1", "a2", "empty"), None)
    tier.write([block("other", fingerprint="fp2")])
    tier.close()
    tier = open_tier(tmp_path, clock)
    assert next(iter(tier.labels("fp"))) == Stored("a0", b"label of a0", SIZE)
    assert have(tier) == ["a0", "a1", "a2", "empty"]
    assert have(tier, "fp2") == ["other"]
    assert have(tier, "fp3") == []
    assert found(tier, ["a2", "empty", "a0", "gone"]) == {
        "a0": payload("a0", SIZE),
        "a2": payload("a2", SIZE),
        "empty": b"",
        "gone": MissReason.ABSENT,
    }
    tier.close()


def test_blocks_are_read_in_the_order_of_the_disk_each_once_and_may_share_one_buffer(tier: SsdTier) -> None:
    tier.write(blocks("a", 6))
    scratch = bytearray(SIZE)
    seen = []
    for one in tier.read(["a4", "a1", "a3", "a1", "a0"], lambda _, size: memoryview(scratch)[:size]):
        assert isinstance(one, Found)
        assert bytes(one.payload) == payload(one.entry.key, SIZE)
        seen.append(one.entry.key)
    assert seen == ["a0", "a1", "a3", "a4"]


def test_neighbours_are_read_with_one_call_where_a_buffer_for_each_is_given(tmp_path: Path, clock: TwoClocks) -> None:
    files = CountingFiles()
    tier = open_ssd(tmp_path, BUDGET, 1 << 30, clock, files)
    tier.write(blocks("a", 3))
    files.calls.clear()
    keys = ["a2", "a0", "a1"]
    assert [one.entry.key for one in tier.read(keys, fresh, sweep_bytes=1 << 20) if isinstance(one, Found)] == sorted(
        keys
    )
    assert files.calls["read"] == 1
    tier.close()


def test_what_is_stored_already_is_not_written_again_but_joins_the_group(tier: SsdTier) -> None:
    tier.write(blocks("a", 2))
    again = tier.write([block("a0", "b", 0), block("b1", "b", 1)])
    assert (again.stored, again.keys) == (1, ("a0", "b1"))
    assert tier.stats().written_bytes == 3 * SIZE
    assert tier.forget_group("a").keys == ("a1",)
    assert have(tier) == ["a0", "b1"]


def test_a_block_that_was_a_label_only_gets_its_kv_later_and_stays_in_its_groups(tier: SsdTier) -> None:
    for size in (900, SIZE):
        key = f"k{size}"
        tier.write([block(key, "a", size=0), block(f"next{size}", "a", 1)])
        tier.join("b", [key])
        assert found(tier, [key]) == {key: b""}
        written = tier.write([block(key, "c", size=size)])
        assert (written.stored, written.keys) == (1, (key,))
        assert found(tier, [key]) == {key: payload(key, size)}
        assert tier.write([block(key, "a", size=0)]).stored == 0  # a label takes nothing away
        tier.forget_group("a")
        tier.forget_group("c")
        assert found(tier, [key]) == {key: payload(key, size)}
        assert tier.verify() == []
        assert tier.forget_group("b").keys == (key,)
    assert (have(tier), tier.stats().used_bytes) == ([], 0)


def test_a_block_that_two_sessions_have_goes_with_the_last_of_them(tier: SsdTier) -> None:
    tier.write(blocks("a", 3))
    tier.join("b", ["a0", "a1", "gone"])
    tier.join("b", ["a0"])
    tier.write([block("b2", "b", 2)])
    assert tier.forget_group("a").keys == ("a2",)
    assert have(tier) == ["a0", "a1", "b2"]
    gone = tier.forget_group("b")
    assert (set(gone.keys), gone.records) == ({"a0", "a1", "b2"}, 3)
    assert (have(tier), tier.evicted()) == ([], [])


def test_joined_blocks_stand_in_the_group_where_they_stood_in_the_other(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock)
    tier.write(blocks("a", 3))
    tier.join("b", ["a2", "a0", "a1"])
    tier.write(blocks("b", 1, first=3))
    assert [e.key for e in tier._store.entries("b")] == ["a0", "a1", "a2", "b3"]
    tier.close()


# -- budgets -----------------------------------------------------------------------------------------------------


def test_room_is_made_by_evicting_the_tails_of_the_coldest_groups(tier: SsdTier, clock: TwoClocks) -> None:
    for group in "abc":
        assert tier.write(blocks(group, 14)).refused is None
        clock.pass_s(10)
    list(tier.read(["a0"], fresh))  # a is the warmest now
    written = tier.write(blocks("d", 10))
    assert written.refused is None
    evicted = tier.evicted()
    assert set(evicted) == {f"b{n}" for n in range(14 - len(evicted), 14)}
    assert tier.evicted() == []
    assert set(have(tier)) == {
        f"{g}{n}" for g, c in (("a", 14), ("b", 14 - len(evicted)), ("c", 14), ("d", 10)) for n in range(c)
    }
    stats = tier.stats()
    assert stats.used_bytes <= stats.budget_bytes == BUDGET
    assert stats.evictions == {"budget": len(evicted), "damaged": 0, "removed": 0}
    assert stats.evicted_unread_bytes == len(evicted) * SIZE


def test_groups_that_are_kept_and_the_one_that_is_written_are_never_evicted(tier: SsdTier, clock: TwoClocks) -> None:
    tier.write(blocks("a", 20))
    clock.pass_s(10)
    written = tier.write(blocks("b", 60), keep={"a"})
    assert written.refused is Refused.BUDGET
    assert written.keys == tuple(f"b{n}" for n in range(written.stored))
    assert 20 < written.stored < 60
    assert tier.evicted() == []
    assert set(have(tier)) == {f"a{n}" for n in range(20)} | set(written.keys)
    assert tier.stats().refusals["budget"] == 60 - written.stored
    more = tier.write(blocks("b", 1, first=written.stored), keep={"a"})
    assert (more.stored, more.keys, more.refused) == (0, (), Refused.BUDGET)
    assert tier.write(blocks("b", 1, first=written.stored)).stored == 1  # a may go now
    assert tier.evicted() != []


def test_a_block_larger_than_the_budget_is_refused_and_the_rest_goes_on(tier: SsdTier) -> None:
    assert tier.write([block("big", size=2 * BUDGET)]).refused is Refused.BUDGET
    assert tier.write(blocks("a", 2)).refused is None
    assert tier.unavailable is None


def test_the_budget_holds_at_every_write(tier: SsdTier, clock: TwoClocks, tmp_path: Path) -> None:
    for n in range(60):
        clock.pass_s(1)
        tier.write(blocks(f"g{n % 7}.", 3, first=3 * n))
        on_disk = sum(f.stat().st_size for f in (tmp_path / "extents").iterdir())
        assert on_disk <= tier.stats().used_bytes <= BUDGET
    gone = set(tier.evicted())
    assert gone.isdisjoint(have(tier))
    assert len(gone) + len(have(tier)) == 180
    assert tier.verify() == []


def test_sessions_that_take_turns_in_a_full_tier_do_not_wear_it_out_by_compaction(
    tier: SsdTier, clock: TwoClocks
) -> None:
    rng = random.Random(1)
    lengths = dict.fromkeys(range(12), 0)
    for _ in range(150):
        clock.pass_s(1)
        group = rng.choice([*lengths, 0, 1])
        count = rng.randrange(1, 5)
        assert tier.write(blocks(f"s{group}.", count, first=lengths[group], size=6000)).refused is None
        lengths[group] += count
    stats = tier.stats()
    assert stats.evictions["budget"] > 100
    assert stats.compacted_bytes < stats.written_bytes / 2
    assert stats.records * 6000 > BUDGET / 2


def test_a_budget_that_was_lowered_holds_from_the_opening_on(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock)
    tier.write(blocks("a", 40))
    tier.close()
    tier = open_tier(tmp_path, clock, budget=BUDGET // 4)
    assert tier.stats().used_bytes <= BUDGET // 4
    assert have(tier) == [f"a{n}" for n in range(len(have(tier)))] != []
    assert set(tier.evicted()).isdisjoint(have(tier))
    tier.close()


# -- the daily budget --------------------------------------------------------------------------------------------


def test_no_more_than_the_daily_budget_is_written_and_the_first_blocks_go_first(
    tmp_path: Path, clock: TwoClocks
) -> None:
    tier = open_tier(tmp_path, clock, daily=5 * SIZE)
    written = tier.write(blocks("a", 8))
    assert (written.stored, written.keys) == (5, ("a0", "a1", "a2", "a3", "a4"))
    assert written.refused is Refused.DAILY_BUDGET
    assert tier.write(blocks("b", 1)).refused is Refused.DAILY_BUDGET
    assert tier.write(blocks("a", 5)).refused is None  # all known: nothing is written
    assert tier.write([block("label", size=0)]).stored == 1
    assert tier.write([block("label")]).refused is Refused.DAILY_BUDGET
    stats = tier.stats()
    assert (stats.day_written_bytes, stats.day_budget_bytes) == (5 * SIZE, 5 * SIZE)
    assert stats.refusals["daily_budget"] == 5
    clock.pass_s(DAY_S - 1)
    assert tier.write(blocks("b", 1)).refused is Refused.DAILY_BUDGET
    clock.pass_s(1)
    assert tier.stats().day_written_bytes == 0
    assert tier.write(blocks("b", 6)).stored == 5
    tier.close()


def test_a_daily_budget_of_zero_writes_nothing(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock, daily=0)
    assert tier.write(blocks("a", 1)).refused is Refused.DAILY_BUDGET
    clock.pass_s(3 * DAY_S)
    assert tier.write(blocks("a", 1)).refused is Refused.DAILY_BUDGET
    tier.close()


def test_the_daily_count_survives_a_restart(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock, daily=5 * SIZE)
    tier.write(blocks("a", 3))
    tier.close()
    clock.pass_s(3600)
    clock.steady = 5.0  # the machine was started anew
    tier = open_tier(tmp_path, clock, daily=5 * SIZE)
    assert tier.stats().day_written_bytes == 3 * SIZE
    assert tier.write(blocks("b", 5)).stored == 2
    clock.pass_s(DAY_S - 3700)
    assert tier.write(blocks("b", 5)).stored == 0
    clock.pass_s(101)
    assert tier.write(blocks("b", 5)).stored == 3
    tier.close()


def test_a_wall_clock_that_jumps_gives_no_more_and_takes_none_away(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock, daily=5 * SIZE)
    tier.write(blocks("a", 5))
    for jump in (DAY_S * 400, -DAY_S * 900, DAY_S * 2):
        clock.wall += jump
        assert tier.write(blocks("b", 1)).refused is Refused.DAILY_BUDGET
        assert tier.stats().day_written_bytes == 5 * SIZE
    clock.steady += DAY_S
    assert tier.write(blocks("b", 1)).refused is None
    tier.close()


def test_a_clock_that_went_back_over_a_restart_leaves_the_count_and_opens_a_new_window_after_a_day(
    tmp_path: Path, clock: TwoClocks
) -> None:
    for _ in range(3):
        tier = open_tier(tmp_path, clock, daily=5 * SIZE)
        tier.write(blocks("a", 9))
        assert tier.stats().day_written_bytes == 5 * SIZE
        tier.close()
        clock.wall -= 400 * DAY_S
    tier = open_tier(tmp_path, clock, daily=5 * SIZE)
    clock.pass_s(DAY_S - 1)
    assert tier.write(blocks("b", 1)).refused is Refused.DAILY_BUDGET
    clock.pass_s(1)
    assert tier.write(blocks("b", 9)).stored == 5
    tier.close()
    tier = open_tier(tmp_path, clock, daily=5 * SIZE)
    assert tier.stats().day_written_bytes == 5 * SIZE
    tier.close()


def test_what_compaction_rewrites_wears_the_disk_and_counts(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock)
    tier.write([*blocks("a", 4), block("a9", "a", 9)])
    tier._store.delete(["a0"])
    before = tier.stats().day_written_bytes
    assert tier.prune().freed_bytes >= SIZE
    stats = tier.stats()
    assert stats.compacted_bytes >= 2 * SIZE
    assert stats.day_written_bytes == before + stats.compacted_bytes
    assert found(tier, ["a9"]) == {"a9": payload("a9", SIZE)}
    tier.close()


def test_a_base_that_cannot_be_makes_the_count_neither_negative_nor_unlimited(tmp_path: Path, clock: TwoClocks) -> None:
    tier = open_tier(tmp_path, clock, daily=5 * SIZE)
    tier.write(blocks("a", 3))
    tier.close()
    with sqlite3.connect(tmp_path / "blocks.sqlite") as c:
        c.execute("UPDATE counters SET value = 1 << 60 WHERE name = 'day_base_bytes'")
    c.close()
    tier = open_tier(tmp_path, clock, daily=5 * SIZE)
    assert tier.stats().day_written_bytes == 0
    assert tier.write(blocks("b", 9)).stored == 5
    assert tier.write(blocks("c", 1)).refused is Refused.DAILY_BUDGET
    tier.close()


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
