"""Power cuts by seed: images of a store as a disk may have it when the power goes at any moment of a running daemon.

What was written and not yet flushed may be there, be missing, or be half there; a name that was made or removed may
have come to the disk or not. SQLite's log is cut inside of the transaction that was being committed. The daemon itself
goes on, so one run gives many crashes.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import Connection

from akashic_daemon.engine.base import PackedRun
from akashic_daemon.engine.packed import HEAD_BYTES
from akashic_daemon.store.blocks.files import FileOps
from akashic_daemon.store.blocks.record import Bytes
from akashic_daemon.store.database import Database
from akashic_daemon.types import SequenceId
from tiers_driver import Breakable

PAD_BYTES = 5000
"""So that blocks are too large to stand in the index."""
_CELL_BYTES = 12


class Bulky(Breakable):
    """Its exports are large enough for extents; what is beside the cells is checked too."""

    _pad_bytes = PAD_BYTES

    def export_bytes(self, tokens: int, storage: str) -> int:
        """Return what the cells take, and the padding."""
        return super().export_bytes(tokens, storage) + self._pad_bytes

    def export_cells(self, sequence: SequenceId, start: int, end: int, into: memoryview, storage: str) -> int:
        """Export, and pad."""
        self._pad_bytes = 0
        try:
            size = super().export_cells(sequence, start, end, into, storage)
        finally:
            self._pad_bytes = PAD_BYTES
        into[size : size + PAD_BYTES] = bytes([size % 251]) * PAD_BYTES
        return size + PAD_BYTES

    def import_runs(self, runs: Sequence[PackedRun], sequence: SequenceId) -> None:
        """Import what is before the padding."""
        plain = []
        for run in runs:
            size = HEAD_BYTES + (run.end - run.start) * _CELL_BYTES
            assert bytes(run.data[size:]) == bytes([size % 251]) * PAD_BYTES, "a wrong payload was served"
            plain.append(PackedRun(run.data[:size], run.start, run.end))
        super().import_runs(plain, sequence)


@dataclass(slots=True)
class _Unflushed:
    """What the disk may not have yet of a file: the bytes before the writes since the last flush, and its size then."""

    size: int
    before: list[tuple[int, bytes]] = field(default_factory=list)


class CutFiles(FileOps):
    """The system's files, with memory of what isn't flushed. `about_to` is called before each change."""

    def __init__(self) -> None:
        self.about_to: Callable[[str], None] = lambda _what: None
        self._paths: dict[int, Path] = {}
        self._unflushed: dict[Path, _Unflushed] = {}
        self.made: set[Path] = set()
        """Names that may not be on the disk yet."""
        self.removed: dict[Path, bytes] = {}
        """Files that may still be on the disk."""

    def create(self, path: Path) -> int:
        """Make a file."""
        self.about_to("create")
        fd = super().create(path)
        self._paths[fd] = path
        self.made.add(path)
        return fd

    def open(self, path: Path) -> int:
        """Open a file."""
        fd = super().open(path)
        self._paths[fd] = path
        return fd

    def write(self, fd: int, parts: Sequence[Bytes], offset: int) -> int:
        """Write, remembering what was there."""
        self.about_to("write")
        lost = self._of(fd)
        length = sum(len(memoryview(p).cast("B")) for p in parts)
        lost.before.append((offset, self._paths[fd].read_bytes()[offset : offset + length]))
        return super().write(fd, parts, offset)

    def truncate(self, fd: int, size: int) -> None:
        """Cut, remembering what was there."""
        self.about_to("truncate")
        self._of(fd).before.append((size, self._paths[fd].read_bytes()[size:]))
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        """Flush."""
        self.about_to("sync")
        super().sync(fd)
        self._unflushed.pop(self._paths[fd], None)

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        self.about_to("unlink")
        if path.exists():
            self.removed[path] = path.read_bytes()
        super().unlink(path)

    def sync_folder(self, folder: Path) -> None:
        """Flush the names."""
        self.about_to("sync_folder")
        super().sync_folder(folder)
        self.made.clear()
        self.removed.clear()

    def close(self, fd: int) -> None:
        """Close a file."""
        self._paths.pop(fd, None)
        super().close(fd)

    def _of(self, fd: int) -> _Unflushed:
        path = self._paths[fd]
        if path not in self._unflushed:
            self._unflushed[path] = _Unflushed(path.stat().st_size)
        return self._unflushed[path]

    def cut(self, image: Path, chance: random.Random) -> None:
        """Turn a fresh copy of the files into what a power cut may have left."""
        for path, lost in self._unflushed.items():
            target = image / path.name
            if not target.exists():
                continue
            data = bytearray(target.read_bytes())
            for offset, old in reversed(lost.before):
                fate = chance.random()
                if fate < 0.4:
                    continue  # it came to the disk
                end = min(len(data), offset + max(len(old), len(data) - offset if not old else len(old)))
                start = offset if fate < 0.7 else chance.randint(offset, max(offset, end))
                kept = old[start - offset : end - offset]
                data[start:end] = kept + bytes(max(0, end - start - len(kept)))
            if chance.random() < 0.5:  # the size didn't come to the disk either
                del data[chance.randint(min(lost.size, len(data)), len(data)) :]
            target.write_bytes(data)
        for path in self.made:
            if chance.random() < 0.5:
                (image / path.name).unlink(missing_ok=True)
        for path, content in self.removed.items():
            if chance.random() < 0.5:
                (image / path.name).write_bytes(content)


@dataclass(slots=True)
class Image:
    """A store after a power cut. stored: the keys that were told as stored before it, with their sizes; None where the
    transaction that was cut may have removed some.
    """

    folder: Path
    moment: str
    stored: dict[str, int] | None


class Cutter:
    """Takes images of `store` into `images`, at about every `every`-th change."""

    def __init__(self, store: Path, images: Path, files: CutFiles, chance: random.Random, every: float) -> None:
        self._store, self._images, self._files = store, images, files
        self._chance, self._every = chance, every
        self.images: list[Image] = []
        self.stored: Callable[[], dict[str, int]] = dict
        self._is_busy = False
        files.about_to = self._about_to

    def _about_to(self, what: str) -> None:
        if not self._is_busy and self._chance.random() < 1 / self._every:
            self._take(what, self.stored())

    def _take(self, moment: str, stored: dict[str, int] | None) -> Path:
        folder = self._images / str(len(self.images))
        shutil.copytree(self._store, folder)
        self._files.cut(folder / "extents", self._chance)
        self.images.append(Image(folder, moment, stored))
        return folder

    @contextmanager
    def in_transactions(self) -> Iterator[None]:
        """Take images in the middle of commits too."""
        transaction = Database.transaction
        log = self._store / "blocks.sqlite-wal"

        @contextmanager
        def cut(database: Database) -> Iterator[Connection]:
            before = log.stat().st_size if log.exists() else 0
            self._is_busy = True
            try:
                with transaction(database) as connection:
                    yield connection
            finally:
                self._is_busy = False
            after = log.stat().st_size if log.exists() else 0
            if after > before and self._chance.random() < 1 / self._every:
                folder = self._take("commit", None)
                with (folder / log.name).open("r+b") as file:
                    file.truncate(self._chance.randint(before, after - 1))

        Database.transaction = cut  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            Database.transaction = transaction  # type: ignore[method-assign]
