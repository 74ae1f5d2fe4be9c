"""Whoever follows what the SSD tier says (written, evicted, removed) knows at every moment exactly what it has."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from akashic_daemon.store.blocks.files import FileOps
from akashic_daemon.store.blocks.record import Found
from akashic_daemon.tiers.ssd import Outgoing, Refused, open_ssd
from block_stores import FakeClock, payload

BUDGET, DAILY = 300_000, 500_000
GROUPS = st.sampled_from("abcd")
NUMBERS = st.integers(0, 30)
SIZES = st.sampled_from([0, 500, 9_000, 25_000])


class UnsyncedFiles(FileOps):
    """Nothing dies here, so nothing need be on the disk at once."""

    def sync(self, fd: int) -> None:
        pass


class TierMachine(RuleBasedStateMachine):
    """`believed`: the size of the KV of each key, as a catalogue would keep it by what the tier says."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = FakeClock()
        self.believed: dict[str, int] = {}
        self.open()

    def open(self) -> None:
        self.tier = open_ssd(self.folder, BUDGET, DAILY, self.clock, UnsyncedFiles())
        self.tier._store.database.connection.execute("PRAGMA synchronous=OFF")

    def teardown(self) -> None:
        self.tier.close()
        shutil.rmtree(self.folder)

    @rule(
        group=GROUPS, numbers=st.lists(NUMBERS, min_size=1, max_size=6, unique=True), size=SIZES, keep=st.sets(GROUPS)
    )
    def write(self, group: str, numbers: list[int], size: int, keep: set[str]) -> None:
        blocks = [Outgoing(f"k{n}", b"label %d" % n, group, n, "fp", payload(f"k{n}", size)) for n in sorted(numbers)]
        written = self.tier.write(blocks, keep=keep)
        assert written.refused is not Refused.UNWRITABLE
        assert written.keys == tuple(b.key for b in blocks[: len(written.keys)])
        assert (written.refused is None) == (len(written.keys) == len(blocks))
        self.follow()
        for key in written.keys:
            self.believed[key] = self.believed.get(key) or size

    @rule(group=GROUPS, numbers=st.lists(NUMBERS, max_size=4))
    def join(self, group: str, numbers: list[int]) -> None:
        self.tier.join(group, [f"k{n}" for n in numbers])

    @rule(group=GROUPS)
    def forget(self, group: str) -> None:
        self.remove(self.tier.forget_group(group).keys)

    @rule(to_bytes=st.none() | st.integers(0, BUDGET), unused_for_s=st.none() | st.integers(0, 50))
    def prune(self, to_bytes: int | None, unused_for_s: int | None) -> None:
        self.remove(self.tier.prune(to_bytes=to_bytes, unused_for_s=unused_for_s).removed.keys)
        if to_bytes is not None:
            assert self.tier.stats().used_bytes <= to_bytes

    @rule(numbers=st.lists(NUMBERS, max_size=5), sweep_bytes=st.sampled_from([0, 1 << 20]))
    def read(self, numbers: list[int], sweep_bytes: int) -> None:
        keys = {f"k{n}" for n in numbers}
        reads = self.tier.read(keys, lambda _, size: memoryview(bytearray(size)), sweep_bytes=sweep_bytes)
        found = {f.entry.key: bytes(f.payload) for f in reads if isinstance(f, Found)}
        assert found == {key: payload(key, self.believed[key]) for key in keys & self.believed.keys()}

    @rule(seconds=st.sampled_from([1, 40, 86_400]))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def reopen(self) -> None:
        self.tier.close()
        self.open()

    def follow(self) -> None:
        for key in self.tier.evicted():
            self.believed.pop(key, None)

    def remove(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            del self.believed[key]
        self.tier.evicted()

    @invariant()
    def what_is_believed_is_there_and_the_budgets_hold(self) -> None:
        assert {one.key: one.size_bytes for one in self.tier.labels("fp")} == self.believed
        assert all(one.label == b"label " + one.key[1:].encode() for one in self.tier.labels("fp"))
        stats = self.tier.stats()
        assert stats.used_bytes <= BUDGET
        assert stats.day_written_bytes - stats.compacted_bytes <= DAILY
        assert stats.unavailable is None


TierMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_the_ssd_tier_never_has_more_or_less_than_it_says = TierMachine.TestCase
