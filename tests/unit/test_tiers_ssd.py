"""The SSD tier: what goes in comes out, budgets and eviction."""

from __future__ import annotations

import random
from pathlib import Path

from akashic_daemon.store.blocks.record import Found, MissReason
from akashic_daemon.tiers.ssd import Refused, SsdTier, Stored, open_ssd
from block_stores import CountingFiles, payload
from ssd_tiers import BUDGET, SIZE, TwoClocks, block, blocks, found, fresh, have, open_tier

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
