"""A busy daemon with a small SSD tier, its clients, and the checks of what a crash left of its store."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path as FilePath
from unittest import mock

from akashic_daemon.errors import AkashicError
from akashic_daemon.program.path import Path
from akashic_daemon.store.blocks.files import FileOps
from akashic_daemon.store.blocks.opening import open_block_store
from akashic_daemon.tiers.removal import forget
from block_stores import CountingFiles, FakeClock
from disk_faults import FailingDisk
from paths_strategy import next_turn, random_path
from power_cuts import Bulky, CutFiles, Cutter, Image
from tiers_driver import Daemon, Tiers, small_blocks

BUDGET = 600_000
"""About 110 blocks: the tier is full soon, so that it evicts and compacts."""
SHORT_RUN_BUDGET = 200_000
"""A third of it, for runs of few turns: they would never evict."""


@contextmanager
def small_extents() -> Iterator[None]:
    """Let extents be of few records, and compaction pause after every other record."""
    with (
        mock.patch("akashic_daemon.tiers.ssd.open_block_store", partial(open_block_store, extent_bytes=40_000)),
        mock.patch("akashic_daemon.store.blocks.slices.SLICE_BYTES", 12_000),
    ):
        yield


def start(folder: FilePath, files: FileOps | None, *, ram_bytes: int = 120_000, ssd_bytes: int = BUDGET) -> Daemon:
    """Start a daemon on a store."""
    tiers = Tiers(folder, ram_bytes=ram_bytes, ssd_bytes=ssd_bytes, files=files, clock=FakeClock())
    return Daemon(tiers, Bulky(kv_cells=400, max_sequences=8))


class Clients:
    """Sessions that go on, branch, and have operations; the same seed asks the same."""

    def __init__(self, seed: int, sessions: int = 5) -> None:
        self.chance = random.Random(seed)
        self.paths: list[Path] = [random_path(self.chance, steps=4, longest=20) for _ in range(sessions)]

    def turn(self, daemon: Daemon, *, keep: bool = True) -> None:
        """Ask one session's next turn and hold it to the twin."""
        chance = self.chance
        number = chance.randrange(len(self.paths))
        path = self.paths[number]
        if len(path) > 120:
            path = random_path(chance, steps=4, longest=20)
        path = next_turn(chance, path, longest=16, drop=0.2, repos=0.1)
        job = daemon.ask(path, max_tokens=chance.randint(1, 16), session=f"s{number}")
        if keep:
            self.paths[number] = path.then(job.generated[:-1])

    def work(self, daemon: Daemon, turns: int) -> None:
        """Ask turn after turn, with everything that moves blocks between."""
        for turn in range(turns):
            self.turn(daemon)
            roll = self.chance.random()
            if roll < 0.3:
                daemon.empty_engine()
                daemon.empty_ram()
            elif roll < 0.35 and daemon.mover.ssd is not None:
                daemon.settle()
                session, wipe = f"s{self.chance.randrange(len(self.paths))}", self.chance.random() < 0.3
                with suppress(AkashicError):  # told to who asked for it, where the disk refuses
                    forget(daemon.mover, session, wipe=wipe)
            if turn % 15 == 14 and daemon.mover.ssd is not None:
                daemon.settle()
                with suppress(AkashicError):
                    daemon.mover.ssd.prune()


def labels(daemon: Daemon) -> dict[str, int]:
    """Return what the disk has, with sizes."""
    assert daemon.mover.ssd is not None
    return {s.key: s.size_bytes for s in daemon.mover.ssd.labels("fake")}


def check_image(image: Image, clients: Clients, counts: Counter[str]) -> None:
    """Open an image, look for damage, and go on with every session."""
    with small_blocks(), small_extents():
        daemon = start(image.folder, CountingFiles())
        assert daemon.mover.problem is None, (image.moment, daemon.mover.problem)
        assert daemon.mover.ssd is not None
        assert daemon.mover.ssd.verify() == [], image.moment
        have = labels(daemon)
        if image.stored is not None:
            lost = {k for k, size in image.stored.items() if have.get(k) != size}
            assert not lost, f"{len(lost)} of {len(image.stored)} stored blocks are gone after a cut at {image.moment}"
        assert daemon.mover.catalogue is not None
        assert len(daemon.mover.catalogue) == len(have), "blocks whose ancestors are gone"
        for path in clients.paths:
            job = daemon.ask(path.then([1, 2]), max_tokens=4, session="after")
            counts["from ssd"] += job.from_tier.get("ssd", 0)
        daemon.check_at_rest()
        assert daemon.mover.ssd.verify() == [], image.moment
        daemon.close()
    counts["images"] += 1
    counts[f"at {image.moment}"] += 1


def cut_and_check(folder: FilePath, seed: int, turns: int, every: float, most: int) -> Counter[str]:
    """Run a busy daemon, and check the images that power cuts leave of it, at most so many."""
    counts: Counter[str] = Counter()
    files, clients = CutFiles(), Clients(seed)
    with small_blocks(), small_extents():
        daemon = start(folder / "store", files)
        cutter = Cutter(folder / "store", folder / "images", files, random.Random(seed), every)
        cutter.stored = lambda: labels(daemon)
        with cutter.in_transactions():
            clients.work(daemon, turns)
        assert daemon.mover.ssd is not None
        counts["evicted"] += daemon.mover.ssd.stats().evictions["budget"]
        daemon.close()
    for image in random.Random(seed).sample(cutter.images, min(most, len(cutter.images))):
        check_image(image, clients, counts)
        shutil.rmtree(image.folder)
    shutil.rmtree(folder / "images", ignore_errors=True)
    return counts


def fail_and_check(folder: FilePath, fail_at: int, *, stays_broken: bool, turns: int = 16) -> FailingDisk:
    """Run a busy daemon whose disk fails at one call, opening the store included; hold it and the next one to the twin."""
    disk, clients = FailingDisk(fail_at, stays_broken=stays_broken), Clients(7, sessions=3)
    with small_blocks(), small_extents(), disk.under_the_index():
        daemon = start(folder, disk, ram_bytes=0 if fail_at % 2 else 120_000, ssd_bytes=SHORT_RUN_BUDGET)
        clients.work(daemon, turns)
        daemon.settle()
        disk.fail_at = None
        clients.turn(daemon)
        daemon.check_at_rest()
        daemon.close()
    with small_blocks(), small_extents():
        again = start(folder, CountingFiles(), ssd_bytes=SHORT_RUN_BUDGET)
        assert again.mover.problem is None, again.mover.problem
        assert again.mover.ssd is not None
        assert again.mover.ssd.verify() == []
        for path in clients.paths:
            again.ask(path.then([1, 2]), max_tokens=2, session="after")
        again.check_at_rest()
        assert again.mover.ssd.verify() == []
        again.close()
    return disk
