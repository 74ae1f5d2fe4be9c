"""What waits is read ahead from disk only as far as RAM has room, and never at the cost of what is needed as much."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath
from unittest import mock

import pytest

from akashic_daemon.program.path import Path, PathBuilder
from akashic_daemon.tiers.block import Block
from fake_service import NEVER
from tiers_driver import BLOCK, Breakable, Daemon, Tiers, small_blocks

PAGE = 4096
"""What a block takes in RAM here."""
TOKENS = 80


@pytest.fixture(autouse=True)
def blocks() -> Iterator[None]:
    with small_blocks():
        yield


def path_of(seed: int) -> Path:
    builder = PathBuilder()
    builder.append([(i * 7 + seed) % 4 for i in range(TOKENS)])
    return builder.build()


class Scene:
    """Two sessions that only the disk has, and RAM for so many blocks."""

    def __init__(self, folder: FilePath, room: int) -> None:
        self.daemon = Daemon(Tiers(folder, ram_bytes=room * PAGE), Breakable(kv_cells=800, end_every=NEVER))
        self.room = room
        for seed in (1, 2):
            self.daemon.ask(path_of(seed), max_tokens=2, session=f"s{seed}")
        self.daemon.empty_engine()
        self.daemon.empty_ram()

    def look_ahead(self, seed: int) -> None:
        """Let a session wait."""
        index = self.daemon.loop.index
        assert index is not None
        self.daemon.loop.tiering.look_ahead(index.ops.key(path_of(seed)))
        self.daemon.mover.run_pending()

    def of(self, seed: int) -> list[Block]:
        """Return a session's blocks, in their order."""
        index = self.daemon.loop.index
        assert index is not None
        return [piece.block for piece in self.daemon.loop.tiering.pieces(index.ops.key(path_of(seed)))]

    def in_ram(self, seed: int) -> int:
        """How many of a session's blocks RAM has; they are its first."""
        there = [block.slots is not None for block in self.of(seed)]
        assert there == sorted(there, reverse=True)
        return sum(there)

    def read_blocks(self) -> int:
        """How many blocks were read ahead."""
        return self.daemon.mover.moves.promoted_ssd_blocks

    def ask(self, seed: int) -> None:
        """Let the session go on, and everything come to rest."""
        self.daemon.ask(path_of(seed), max_tokens=2, session=f"s{seed}")

    def end(self, wasted: int = 0) -> None:
        """Tell what was wasted, and hold everything to the twin."""
        assert self.daemon.mover.moves.prefetch_wasted_bytes == wasted
        self.daemon.settle()
        self.daemon.check_at_rest()
        self.daemon.close()


def test_all_of_it_is_read_where_there_is_room_and_used(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path, 64)
    scene.look_ahead(1)
    assert scene.in_ram(1) == scene.read_blocks() >= TOKENS // BLOCK
    read_bytes = scene.daemon.mover.moves.prefetched_bytes
    scene.ask(1)
    # Of the prompt's last token the logits are needed, so what holds it may come for nothing.
    assert scene.daemon.mover.moves.prefetch_used_bytes >= read_bytes * 0.8
    scene.end()


def test_what_has_no_room_is_not_read_and_the_beginning_goes_first(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path, 6)
    scene.look_ahead(1)
    assert scene.in_ram(1) == scene.read_blocks() == 6
    scene.end()


def test_what_waits_as_long_keeps_what_was_read_for_it(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path, 12)
    scene.look_ahead(1)
    first = scene.in_ram(1)
    scene.look_ahead(2)
    assert scene.in_ram(1) == first
    assert scene.in_ram(2) == 12 - first
    assert scene.read_blocks() == 12
    scene.look_ahead(2)
    assert scene.read_blocks() == 12
    scene.end()


def test_what_only_ram_has_does_not_go_for_it(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path, 10)
    scene.look_ahead(1)
    scene.daemon.mover.gone_from_ssd([block.key for block in scene.of(1)], "pruned")
    held = scene.in_ram(1)
    for block in scene.of(1):
        block.prefetched = False
    scene.look_ahead(2)
    assert scene.in_ram(1) == held
    assert scene.in_ram(2) == 10 - held
    scene.end()


def test_older_copies_that_the_disk_has_too_go_for_it(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path, 10)
    scene.look_ahead(1)
    for block in scene.of(1):
        block.prefetched = False  # it was used
    scene.look_ahead(2)
    assert scene.in_ram(2) == 10
    assert scene.in_ram(1) == 0
    assert all(block.on_ssd for block in scene.of(1))
    scene.end()


def test_what_a_request_begins_to_read_meanwhile_stays_and_less_is_read_ahead(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path, room=TOKENS // BLOCK)
    scene.look_ahead(1)
    held = [block for block in scene.of(1) if block.slots is not None]
    for block in held:
        block.prefetched = False  # as if it had been used
    scene.of(2)  # used later, so that the others are spare
    mover, listed = scene.daemon.mover, held[:]
    catalogue = mover.catalogue
    assert catalogue is not None
    catalogue.pin(held)  # on the engine's thread, after the mover has listed what is spare
    with mock.patch.object(mover, "_idle_in_ram", return_value=listed):
        mover.prefetch(scene.of(2))
    assert scene.in_ram(1) == len(held)
    assert scene.in_ram(2) == 0
    catalogue.unpin(held)
    scene.daemon.check_at_rest()
    scene.daemon.close()
