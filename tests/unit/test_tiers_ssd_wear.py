"""The SSD tier wears its disk no more than a day's budget allows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from akashic_daemon.tiers.ssd import Refused
from akashic_daemon.tiers.wear import DAY_S
from block_stores import payload
from ssd_tiers import SIZE, TwoClocks, block, blocks, found, open_tier

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
