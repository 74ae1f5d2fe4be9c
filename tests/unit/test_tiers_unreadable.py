"""Blocks that the disk can't give: for a moment, never again because they are damaged, or because of a bug of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path as FilePath
from unittest import mock

import pytest

from akashic_daemon.program.path import Path, PathBuilder
from akashic_daemon.schedule.request import Request
from akashic_daemon.store.blocks.layout import RECORD_HEADER_BYTES
from akashic_daemon.tiers.block import Block
from akashic_daemon.tiers.labels import check_labels
from block_stores import CountingFiles
from fake_service import NEVER
from tiers_driver import Breakable, Daemon, Tiers, small_blocks

TOKENS = 80


@pytest.fixture(autouse=True)
def blocks() -> Iterator[None]:
    with small_blocks(), mock.patch("akashic_daemon.store.blocks.store.INLINE_BYTES", 1):
        yield


def path() -> Path:
    builder = PathBuilder()
    builder.append([i * 7 % 4 for i in range(TOKENS)])
    return builder.build()


class Scene:
    """A session of which only the disk has the KV."""

    def __init__(self, folder: FilePath, *, ram_bytes: int = 1 << 20) -> None:
        self.folder, self.files = folder, CountingFiles()
        self.daemon = Daemon(Tiers(folder, ram_bytes, files=self.files), Breakable(kv_cells=800, end_every=NEVER))
        self.daemon.ask(path(), session="s")
        self.lose_memory()

    def lose_memory(self) -> None:
        """Let engine and RAM forget."""
        self.daemon.empty_engine()
        self.daemon.empty_ram()

    def blocks(self) -> list[Block]:
        """Return the session's blocks."""
        assert self.daemon.loop.index is not None
        pieces = self.daemon.loop.tiering.pieces(self.daemon.loop.index.ops.key(path()))
        return [piece.block for piece in pieces]

    def spoil(self, block: Block) -> None:
        """Change a byte of a block on the disk."""
        assert self.daemon.mover.ssd is not None
        number, offset = self.daemon.mover.ssd._store.places("s")[block.key]
        file = self.folder / "extents" / f"{number:04d}.ext"
        raw = bytearray(file.read_bytes())
        raw[offset + RECORD_HEADER_BYTES] ^= 1
        file.write_bytes(raw)

    def ask(self) -> Request:
        """Let the session ask again."""
        return self.daemon.ask(path(), session="s")

    def notes(self, request: Request) -> str:
        """Return what a request was told."""
        return " ".join(request.reuse.notes)

    @property
    def lost(self) -> dict[str, int]:
        """Blocks without a copy, by reason."""
        return self.daemon.mover.moves.lost_blocks

    def end(self) -> None:
        """Hold everything to the twin."""
        self.daemon.settle()
        self.daemon.check_at_rest()
        self.daemon.close()


def test_what_could_not_be_read_for_a_moment_is_computed_and_read_the_next_time(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path, ram_bytes=0)
    there = scene.blocks()
    scene.files.fail_at, scene.files.stays_broken = 1, True
    request = scene.ask()
    assert request.computed == TOKENS
    assert "could not be read" in scene.notes(request)
    scene.files.fail_at = None
    assert all(block.on_ssd for block in there)
    assert scene.lost == {}
    scene.lose_memory()
    assert scene.ask().computed < TOKENS / 2
    scene.end()


def test_what_could_not_be_read_ahead_for_a_moment_is_read_the_next_time(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path)
    there = scene.blocks()
    scene.files.fail_at, scene.files.stays_broken = 1, True
    scene.daemon.mover.prefetch(there)
    assert not any(block.slots for block in there)
    scene.files.fail_at = None
    scene.daemon.mover.prefetch(there)
    assert all(block.slots for block in there)
    assert scene.lost == {}
    scene.end()


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_damaged_block_is_given_up_counted_once_and_stored_anew(tmp_path: FilePath, is_ahead: bool) -> None:
    scene = Scene(tmp_path)
    there = scene.blocks()
    scene.spoil(there[3])
    if is_ahead:
        scene.daemon.mover.prefetch(there)
    scene.ask()
    assert scene.lost == {"unreadable": 1}
    scene.lose_memory()
    assert all(block.on_ssd for block in there)
    scene.end()


def test_what_the_store_no_longer_has_is_written_again_with_what_leads_to_it(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path, ram_bytes=0)
    ssd = scene.daemon.mover.ssd
    assert ssd is not None
    ssd._store.delete([block.key for block in scene.blocks()])
    assert scene.ask().computed == TOKENS
    scene.lose_memory()
    assert check_labels(ssd, None) == {}
    assert scene.ask().computed < TOKENS / 2
    scene.end()


def test_a_bug_while_blocks_are_read_lets_the_request_compute_and_no_buffer_is_lost(tmp_path: FilePath) -> None:
    scene = Scene(tmp_path)
    mover = scene.daemon.mover
    with mock.patch.object(mover, "store_in_ram", side_effect=RuntimeError("a bug")):
        _, told = scene.daemon.submit(path(), session="s")
        for _ in range(1000):
            scene.daemon.step()
            with suppress(RuntimeError):
                mover.run_pending()
    assert told.finished is not None
    scene.end()
