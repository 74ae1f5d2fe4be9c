"""Removing blocks on the mover's thread while some of them wait to be written, are read, or are another session's too."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from unittest import mock

import pytest

from akashic_daemon.tiers.adopt import Adoption
from akashic_daemon.tiers.arena import Arena
from akashic_daemon.tiers.block import Block, block_key, to_label
from akashic_daemon.tiers.catalogue import Catalogue
from akashic_daemon.tiers.costs import Costs
from akashic_daemon.tiers.labels import check_labels
from akashic_daemon.tiers.mover import Mover
from akashic_daemon.tiers.removal import Choice, forget, prune, rename, would_prune
from akashic_daemon.tiers.ssd import Outgoing, Refused, SsdTier, Written, open_ssd
from akashic_daemon.tiers.staging import Staging
from block_stores import CountingFiles, FakeClock

T = TypeVar("T")
PAYLOAD = 5000
"""More than stands in the index: it goes into an extent."""


class Stand:
    """A mover with all tiers; `do` runs a function on its thread, with nothing of its own in between."""

    def __init__(self, folder: Path, *, ram_bytes: int = 1 << 20, ssd_bytes: int = 64 << 20) -> None:
        self.folder = folder
        self.catalogue = Catalogue("fp")
        self.mover = Mover(lambda: open_ssd(folder, ssd_bytes, 1 << 30, FakeClock(), CountingFiles()))
        self.mover.start()
        arena, costs = Arena(ram_bytes, 4096), Costs(None, "fp")
        self.outgoing = Staging(4, PAYLOAD)
        self.mover.call(lambda: self.mover.serve(self.catalogue, arena, self.outgoing, Staging(2, PAYLOAD), costs))

    def do(self, work: Callable[[], T]) -> T:
        found: list[T] = []
        self.mover.call(lambda: found.append(work()), 60)
        return found[0]

    def store(self, letter: str, parent: Block | None, group: str, *, to_disk: bool = True) -> Block:
        """Export a block; it waits to be written afterwards."""
        first = parent.end if parent is not None else 0
        block = self.catalogue.add(parent, (), array("i", [ord(letter)] * 16), first, first)
        buffer = self.outgoing.take()
        assert buffer is not None
        buffer.view(PAYLOAD)[:] = letter.encode() * PAYLOAD
        self.mover.store(block, buffer, PAYLOAD, group, to_disk=to_disk)
        return block

    @property
    def ssd(self) -> SsdTier:
        assert self.mover.ssd is not None
        return self.mover.ssd

    def on_disk(self, letter: str) -> bool:
        files = [p for p in self.folder.rglob("*") if p.is_file()]
        return any(letter.encode() * 200 in p.read_bytes() for p in files)


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(tmp_path)
    yield stand
    assert stand.mover.stop(30)


def test_what_waits_to_be_written_of_a_removed_session_is_never_written(stand: Stand) -> None:
    def work() -> None:
        first = stand.store("a", None, "gone")
        stand.store("b", first, "gone")
        assert stand.mover.waiting_writes == 2
        gone = forget(stand.mover, "gone", wipe=True)
        assert (gone.ram_blocks, gone.ssd_blocks, gone.left) == (2, 0, "")
        assert stand.mover.waiting_writes == 0
        stand.mover.flush_writes()

    stand.do(work)
    assert stand.catalogue.blocks() == []
    assert stand.do(lambda: stand.ssd.stats().records) == 0
    assert stand.outgoing.free_count == stand.outgoing.count
    assert not stand.on_disk("a")


def test_what_waits_in_a_buffer_of_its_own_gives_the_buffer_back(tmp_path: Path) -> None:
    stand = Stand(tmp_path, ram_bytes=0)

    def work() -> None:
        stand.store("a", None, "gone")
        assert stand.outgoing.free_count == stand.outgoing.count - 1
        forget(stand.mover, "gone", wipe=True)

    stand.do(work)
    assert stand.outgoing.free_count == stand.outgoing.count
    assert stand.catalogue.blocks() == []
    assert stand.mover.stop(30)


def test_what_waits_to_be_written_and_another_session_has_too_is_written_as_its(stand: Stand) -> None:
    def work() -> None:
        block = stand.store("a", None, "gone")
        stand.mover.join("stays", [block.key])
        forget(stand.mover, "gone", wipe=True)
        stand.mover.flush_writes()
        assert block.on_ssd
        assert block.slots is not None
        assert forget(stand.mover, "stays", wipe=True).ssd_blocks == 1

    stand.do(work)
    assert stand.catalogue.blocks() == []
    assert not stand.on_disk("a")


def test_what_waits_to_be_written_goes_on_under_a_sessions_new_name(stand: Stand) -> None:
    def work() -> None:
        first = stand.store("a", None, "old")
        stand.mover.flush_writes()
        stand.store("b", first, "old")
        rename(stand.mover, "old", "new")
        stand.mover.flush_writes()
        assert forget(stand.mover, "old", wipe=True).ssd_blocks == 0
        assert {b.groups for b in stand.catalogue.blocks()} == {("new",)}
        assert forget(stand.mover, "new", wipe=True).ssd_blocks == 2

    stand.do(work)
    assert stand.catalogue.blocks() == []


def test_payloads_leave_the_extents_with_their_session_and_others_stay(stand: Stand) -> None:
    def work() -> None:
        stand.store("a", None, "gone")
        shared = stand.store("b", None, "gone")
        stand.mover.flush_writes()  # both lie in one extent
        stand.mover.join("stays", [shared.key])

    stand.do(work)
    assert stand.on_disk("a")
    assert stand.do(lambda: forget(stand.mover, "gone", wipe=True)).freed_bytes > PAYLOAD
    assert not stand.on_disk("a")
    assert stand.on_disk("b")
    assert stand.do(stand.ssd.verify) == []


def test_without_a_wipe_the_bytes_stay_until_the_next_one(stand: Stand) -> None:
    def work() -> None:
        stand.store("a", None, "scratch")
        shared = stand.store("b", None, "scratch")
        stand.mover.flush_writes()  # both lie in one extent
        stand.mover.join("other", [shared.key])
        assert forget(stand.mover, "scratch", wipe=False).ssd_blocks == 1

    stand.do(work)
    assert stand.on_disk("a")
    stand.do(lambda: forget(stand.mover, "nobody", wipe=True))
    assert not stand.on_disk("a")


def test_a_block_that_is_being_read_stays_in_ram_while_everything_else_is_pruned(stand: Stand) -> None:
    def work() -> None:
        read, idle = stand.store("a", None, "one"), stand.store("b", None, "one")
        stand.catalogue.pin([read])
        told = would_prune(stand.mover, Choice(everything=True))
        assert (told.ssd_blocks, told.ram_blocks) == (2, 1)
        done = prune(stand.mover, Choice(everything=True))
        assert (done.ssd_blocks, done.ram_blocks) == (2, 1)
        assert read.slots is not None
        assert idle.slots is None
        stand.catalogue.unpin([read])
        assert stand.catalogue.blocks() == [read]

    stand.do(work)


def test_pruned_blocks_without_another_copy_count_as_lost_with_that_reason(stand: Stand) -> None:
    def work() -> None:
        block = stand.store("a", None, "one")
        stand.mover.flush_writes()
        stand.mover.drop_from_ram(block)
        prune(stand.mover, Choice(to_bytes=0))
        assert stand.mover.moves.lost_blocks == {"pruned": 1}

    stand.do(work)
    assert stand.catalogue.blocks() == []


def test_a_block_stored_while_a_prune_takes_its_parent_is_found_after_a_restart(stand: Stand) -> None:
    def work() -> None:
        parent = stand.store("a", None, "one")
        stand.mover.flush_writes()
        children: list[Block] = []

        def in_the_middle() -> None:
            if not children:
                children.append(stand.store("b", parent, "two"))

        stand.ssd.pause_with(in_the_middle)
        prune(stand.mover, Choice(everything=True))
        assert not parent.on_ssd
        stand.mover.flush_writes()
        assert children[0].on_ssd

    stand.do(work)
    assert stand.do(lambda: check_labels(stand.ssd, None)) == {}


def test_a_block_whose_parent_makes_room_for_it_is_found_after_a_restart(tmp_path: Path) -> None:
    stand = Stand(tmp_path, ssd_bytes=100_000)

    def work() -> None:
        parent = stand.store("a", None, "coldest")
        stand.mover.flush_writes()
        while stand.ssd._store.free_bytes > PAYLOAD + 200:
            number = stand.ssd.stats().records
            stand.store(chr(ord("A") + number), None, f"session {number}")
            stand.mover.flush_writes()
        assert parent.on_ssd
        child = stand.store("z", parent, "new")
        stand.mover.flush_writes()
        assert child.on_ssd
        assert stand.ssd.stats().evictions["budget"] > 0

    stand.do(work)
    assert stand.do(lambda: check_labels(stand.ssd, None)) == {}
    assert stand.mover.stop(30)


def test_blocks_of_another_home_that_go_on_from_what_only_ram_has_are_found_after_a_restart(stand: Stand) -> None:
    def work() -> None:
        parent = stand.store("a", None, "here", to_disk=False)
        tokens = array("i", [1] * 16)
        came = Block(block_key("fp", parent.key, (), tokens), parent, (), tokens, parent.end, parent.end)
        adoption = Adoption(stand.mover, stand.catalogue, "came")
        block = adoption.label(came.key, to_label(came))
        assert isinstance(block, Block)
        adoption.take([(block, b"b" * PAYLOAD)])
        adoption.end()
        assert adoption.taken.blocks == 1

    stand.do(work)
    assert stand.do(lambda: check_labels(stand.ssd, None)) == {}


def test_ancestors_that_a_prune_took_are_written_again_in_slices(stand: Stand) -> None:
    sizes: list[int] = []
    write = stand.ssd.write

    def noting(outgoing: Sequence[Outgoing]) -> Written:
        sizes.append(len(outgoing))
        return write(outgoing)

    def work() -> None:
        block = stand.store("a", None, "one")
        for letter in "bcdefghijklmnop":
            block = stand.store(letter, block, "one")
            stand.mover.flush_writes()
        last = stand.store("q", block, "one")
        stand.ssd.prune(everything=True)
        stand.mover.gone_from_ssd([other.key for other in stand.catalogue.blocks()], "pruned")
        with (
            mock.patch("akashic_daemon.store.blocks.slices.SLICE_RECORDS", 4),
            mock.patch.object(stand.ssd, "write", noting),
        ):
            stand.mover.flush_writes()
        assert last.on_ssd

    stand.do(work)
    assert (sum(sizes), max(sizes)) == (17, 4)
    assert stand.do(lambda: check_labels(stand.ssd, None)) == {}


def test_what_the_disk_refuses_is_not_tried_for_ever_with_its_ancestors(stand: Stand) -> None:
    def work() -> None:
        block = stand.store("a", None, "one")
        for letter in "bcdefgh":
            block = stand.store(letter, block, "one")
            stand.mover.flush_writes()
        stand.store("i", block, "one")
        stand.ssd.prune(everything=True)
        stand.mover.gone_from_ssd([other.key for other in stand.catalogue.blocks()], "pruned")
        refused = mock.Mock(return_value=Written(refused=Refused.DAILY_BUDGET))
        with (
            mock.patch("akashic_daemon.store.blocks.slices.SLICE_RECORDS", 2),
            mock.patch.object(stand.ssd, "write", refused),
        ):
            stand.mover.flush_writes()
        assert sum(len(call.args[0]) for call in refused.call_args_list) == 9
        assert stand.mover.waiting_writes == 0

    stand.do(work)


def test_a_bug_while_the_tier_is_opened_leaves_a_thread_that_works_and_is_told() -> None:
    mover = Mover(mock.Mock(side_effect=RuntimeError("a bug")))
    mover.start()
    mover.call(lambda: None, 60)
    assert mover.ssd is None
    assert mover.problem is not None
    assert mover.stop(30)
