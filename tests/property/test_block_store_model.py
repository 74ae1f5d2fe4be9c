"""The block store against a dictionary: puts, reads, removals, eviction, compaction, reopening, within a budget."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from akashic_daemon.store.blocks.check import check
from akashic_daemon.store.blocks.compaction import compact
from akashic_daemon.store.blocks.eviction import make_room
from akashic_daemon.store.blocks.reading import Reads
from akashic_daemon.store.blocks.record import Found, Miss, MissReason, Record
from akashic_daemon.store.blocks.store import BlockStore
from block_stores import FakeClock, WatchedFiles, open_store, read_group, record

KEYS = st.sampled_from([f"k{i}" for i in range(14)])
GROUPS = st.sampled_from("abc")
SIZES = {f"k{i}": (0, 40, 4095, 4096, 6000, 30_000, 12_000)[i % 7] for i in range(14)}
BUDGET_BYTES = 150_000
PLACES = st.lists(st.tuples(KEYS, GROUPS, st.integers(0, 5)), max_size=5)


class BlockStoreMachine(RuleBasedStateMachine):
    """`twin` holds what must be readable: the payload of each key, and the (sequence, order of storing) in each group."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.twin: dict[str, bytes] = {}
        self.order: dict[str, int] = {}
        self.members: dict[str, set[tuple[int, str]]] = {g: set() for g in "abc"}
        self.count = 0
        self.open()

    def open(self) -> None:
        folder = Path(self.folder.name)
        self.files = WatchedFiles(folder / "extents")
        self.store: BlockStore = open_store(
            folder, budget_bytes=BUDGET_BYTES, extent_bytes=20_000, clock=self.clock, files=self.files
        )

    def teardown(self) -> None:
        if hasattr(self, "store"):
            assert check(self.store) == []
            self.store.close()
            self.folder.cleanup()

    @rule(places=PLACES)
    def put(self, places: list[tuple[str, str, int]]) -> None:
        self.clock.now += 1
        records = [record(key, group=g, sequence=n, size_bytes=SIZES[key]) for key, g, n in places]
        new = {r.key for r in records} - self.twin.keys()
        put = self.store.put(records)
        if put.refusal is not None:
            assert put.refusal.needed_bytes > put.refusal.free_bytes
            assert put.refusal.needed_bytes <= sum(SIZES[key] + 88 for key in new)
            return
        assert (put.stored, put.known) == (len(new), len({r.key for r in records}) - len(new))
        self.remember(records)

    def remember(self, records: list[Record]) -> None:
        # New records enter in the order in which their keys first stand in the batch.
        for one in records:
            if one.key not in self.twin:
                self.count += 1
                self.twin[one.key] = bytes(one.payload)
                self.order[one.key] = self.count
            self.members[one.group].add((one.sequence, one.key))

    def forget(self, key: str) -> None:
        del self.twin[key], self.order[key]
        for members in self.members.values():
            members -= {m for m in members if m[1] == key}

    @rule(key=KEYS, has_buffer=st.booleans())
    def get(self, key: str, has_buffer: bool) -> None:
        found = self.store.get(key, bytearray(30_000) if has_buffer else None)
        if key in self.twin:
            assert isinstance(found, Found)
            assert bytes(found.payload) == self.twin[key]
        else:
            assert isinstance(found, Miss)
            assert found.reason is MissReason.ABSENT

    @rule(keys=st.lists(KEYS, max_size=3))
    def delete(self, keys: list[str]) -> None:
        gone = {key for key in keys if key in self.twin}
        assert self.store.delete(keys).records == len(gone)
        for key in gone:
            self.forget(key)

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        left = {m[1] for g, members in self.members.items() if g != group for m in members}
        gone = {m[1] for m in self.members[group]} - left
        assert self.store.delete_group(group).records == len(gone)
        self.members[group] = set()
        for key in gone:
            self.forget(key)

    @rule()
    def compact(self) -> None:
        compact(self.store)
        assert self.store.stats().dead_bytes == 0

    @rule(needed_bytes=st.integers(0, 130_000), keep=GROUPS)
    def make_room(self, needed_bytes: int, keep: str) -> None:
        room = make_room(self.store, needed_bytes, keep={keep})
        assert room.is_enough == (self.store.free_bytes >= needed_bytes)
        kept = {m[1] for m in self.members[keep]}
        here = {key for key in self.twin if isinstance(self.store.get(key), Found)}
        assert kept <= here
        assert room.evicted.records == len(self.twin) - len(here)
        for key in self.twin.keys() - here:
            self.forget(key)
        assert room.is_enough or here == kept

    @rule()
    def reopen(self) -> None:
        used = self.store.bytes_used
        self.store.close()
        self.open()
        assert self.store.bytes_used == used

    @rule(group=GROUPS, doing=st.sampled_from(["compact", "delete", "nothing"]))
    def read_while(self, group: str, doing: str) -> None:
        expected = self.expected(group)
        with read_group(self.store, group) as reads:
            if doing == "compact":
                compact(self.store)
            elif doing == "delete":
                self.delete_group(group)
                compact(self.store)
            assert payloads(reads) == expected
        self.store.extents.sweep()

    def expected(self, group: str) -> list[tuple[str, bytes]]:
        members = sorted(self.members[group], key=lambda m: (m[0], self.order[m[1]]))
        return [(key, self.twin[key]) for _, key in members]

    @invariant()
    def groups_are_read_in_order(self) -> None:
        if hasattr(self, "store"):
            for group in "abc":
                with read_group(self.store, group) as reads:
                    assert payloads(reads) == self.expected(group)

    @invariant()
    def the_budget_holds_and_the_bytes_are_exact(self) -> None:
        if hasattr(self, "store"):
            in_files = sum(f.stat().st_size for f in self.store.extents.folder.iterdir())
            inline = sum(len(p) for p in self.twin.values() if len(p) < 4096)
            assert self.store.bytes_used == in_files + inline
            assert self.store.bytes_used <= BUDGET_BYTES
            assert self.files.most_bytes <= BUDGET_BYTES


def payloads(reads: Reads) -> list[tuple[str, bytes]]:
    found = list(reads)
    assert all(isinstance(f, Found) for f in found), found
    return [(f.entry.key, bytes(f.payload)) for f in found if isinstance(f, Found)]


BlockStoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
test_the_block_store_is_a_dictionary = BlockStoreMachine.TestCase
