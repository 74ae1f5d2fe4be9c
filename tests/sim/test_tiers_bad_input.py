"""A service whose SSD tier is full, read-only, damaged, from the future or taken: it says so, goes on, and errs in nothing."""

from __future__ import annotations

import asyncio
import errno
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path as FilePath
from unittest import mock

import pytest

from akashic_daemon.config import load
from akashic_daemon.errors import ConfigError
from akashic_daemon.paths import find_paths
from akashic_daemon.service import Service
from akashic_daemon.store.blocks.files import FileOps
from akashic_daemon.store.blocks.record import Bytes
from akashic_daemon.tiers.costs import Costs
from akashic_daemon.tiers.jobs import Priority
from akashic_daemon.tiers.ssd import open_ssd
from akashic_daemon.trajectory.message import Message
from akashic_daemon.types import SystemClock
from block_stores import FakeClock
from fake_service import NEVER, ask, assistant, user
from power_cuts import Bulky
from tiers_driver import small_blocks
from watched_service import Outcome, Watch, watched

BUDGET = 4_000_000


class SickFiles(FileOps):
    """A disk that refuses writes with `error`, as long as it is set."""

    def __init__(self, error: int | None = None) -> None:
        self.error = error
        self.refused = 0

    def _maybe(self) -> None:
        if self.error is not None:
            self.refused += 1
            raise OSError(self.error, errno.errorcode[self.error])

    def create(self, path: FilePath) -> int:
        """Make a file, or refuse."""
        self._maybe()
        return super().create(path)

    def write(self, fd: int, parts: Sequence[Bytes], offset: int) -> int:
        """Write, or refuse."""
        self._maybe()
        return super().write(fd, parts, offset)

    def sync(self, fd: int) -> None:
        """Flush, or refuse."""
        self._maybe()
        super().sync(fd)


@contextmanager
def on_disk(files: FileOps | None = None, clock: FakeClock | None = None) -> Iterator[None]:
    """Let the tier of services inside the block be on these files, and everything be worth writing and reloading."""

    def opened(folder: FilePath, budget: int, daily: int, real: SystemClock) -> object:
        return open_ssd(folder, budget, daily, clock or real, files)

    with (
        small_blocks(staging=4, is_stepped=False),
        mock.patch.object(Costs, "reload_pays", return_value=True),
        mock.patch("akashic_daemon.tier_service.service.open_ssd", opened),
    ):
        yield


@asynccontextmanager
async def serving(home: FilePath, *, ram_bytes: int = 0) -> AsyncIterator[Watch]:
    """Run a service with an SSD tier."""
    home.mkdir(exist_ok=True)
    flags = {"cache.ram_bytes": ram_bytes, "cache.ssd_bytes": BUDGET}
    make = partial(Bulky, kv_cells=4000, window_tokens=2000, end_every=NEVER)
    async with watched(home, lambda _name, _path: make(), flags=flags) as watch:
        yield watch


async def forget_engine(watch: Watch) -> None:
    """Let everything be copied out and written, and the engine lose it."""
    loop, mover = watch.service._loop, watch.service.tiers.mover

    def evict() -> None:
        assert loop.index is not None
        assert loop.tiering._exporter is not None
        loop.tiering._exporter.flush(60.0)
        loop.index.make_room(loop.index.cells_total)

    await watch.service._host.on_engine_thread(evict)
    await asyncio.to_thread(mover.call, mover.flush_writes, 60.0, priority=Priority.LAST)


class Talk:
    """A conversation; each answer is held to the twin by `watch.ask`."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def turn(self, watch: Watch, *, session: str = "s") -> Outcome:
        """Ask on, with an engine that has forgotten everything."""
        self.messages.append(user(f"question {len(self.messages)} of some length, to be answered"))
        outcome = await watch.ask(ask(*self.messages, session=session, max_tokens=12))
        self.messages.append(assistant(outcome.finished.text))
        await watch.check_index()
        await forget_engine(watch)
        return outcome

    async def turns(self, watch: Watch, count: int) -> Outcome:
        """Ask so many times; return the last."""
        for _ in range(count - 1):
            await self.turn(watch)
        return await self.turn(watch)


async def problems(watch: Watch) -> str:
    """Return what `status` says of problems."""
    return " ".join((await watch.service.status()).warnings)


def run(work: Callable[[], object]) -> None:
    """Run a coroutine function to its end."""
    asyncio.run(asyncio.wait_for(work(), 100))  # type: ignore[arg-type]


async def fill(home: FilePath) -> Talk:
    """Let a service store a conversation, and stop."""
    talk = Talk()
    async with serving(home) as watch:
        outcome = await talk.turns(watch, 4)
        assert outcome.job.from_tier.get("ssd", 0) > 50
        assert await problems(watch) == ""
    return talk


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_on_a_disk_that_takes_nothing_it_goes_on_says_so_and_writes_again_later(home: FilePath, error: int) -> None:
    async def work() -> None:
        files = SickFiles()
        with on_disk(files):
            async with serving(home) as watch:
                talk = Talk()
                await talk.turns(watch, 3)
                files.error = error
                before = await talk.turns(watch, 2)
                assert before.job.from_tier.get("ssd", 0) > 50  # what it has is served
                assert files.refused
                assert "SSD tier" in await problems(watch)
                files.error = None
                await talk.turns(watch, 2)
                after = await talk.turn(watch)
                assert after.job.from_tier["ssd"] > before.job.from_tier["ssd"]
                assert await problems(watch) == ""

    run(work)


def spoil_bytes(folder: FilePath) -> None:
    """Flip bytes all over the extents."""
    chance = random.Random(3)
    for file in sorted((folder / "extents").glob("*.ext")):
        data = bytearray(file.read_bytes())
        for at in range(200, len(data), 4000):
            data[at + chance.randrange(min(4000, len(data) - at))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)


def cut_files(folder: FilePath) -> None:
    """Cut the extents in the middle."""
    for file in (folder / "extents").glob("*.ext"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def remove_files(folder: FilePath) -> None:
    """Remove the extents."""
    for file in (folder / "extents").glob("*.ext"):
        file.unlink()


@pytest.mark.parametrize("spoil", [spoil_bytes, cut_files, remove_files])
def test_damaged_extents_serve_nothing_wrong_and_are_written_anew(
    home: FilePath, spoil: Callable[[FilePath], None]
) -> None:
    async def work() -> None:
        with on_disk():
            talk = await fill(home)
            spoil(find_paths({"AKASHIC_HOME": str(home)}).store_dir)
            async with serving(home) as watch:
                await talk.turn(watch)
                again = await talk.turn(watch)
                assert again.job.from_tier.get("ssd", 0) > 100, "what was damaged isn't stored anew"
                assert again.job.computed < 60 + 2 * 8 + 40
                found = await watch.service.upkeep.verify(fix=True)
                assert await watch.service.upkeep.verify(fix=False) == [], found

    run(work)


def test_a_store_of_a_newer_version_is_left_alone_and_named(home: FilePath) -> None:
    async def work() -> None:
        with on_disk():
            talk = await fill(home)
            index = find_paths({"AKASHIC_HOME": str(home)}).store_dir / "blocks.sqlite"
            connection = sqlite3.connect(index)
            connection.execute("PRAGMA user_version=99")
            connection.close()
            content = index.read_bytes()
            async with serving(home, ram_bytes=1 << 20) as watch:
                outcome = await talk.turns(watch, 2)
                assert outcome.job.from_tier.get("ram", 0) > 100
                assert "newer akashic" in await problems(watch)
            assert index.read_bytes() == content

    run(work)


def test_an_index_that_is_no_database_is_left_alone_and_named(home: FilePath) -> None:
    async def work() -> None:
        with on_disk():
            talk = await fill(home)
            index = find_paths({"AKASHIC_HOME": str(home)}).store_dir / "blocks.sqlite"
            content = b"a diary, not a database\n" * 300
            index.write_bytes(content)
            async with serving(home, ram_bytes=1 << 20) as watch:
                outcome = await talk.turns(watch, 2)
                assert outcome.job.from_tier.get("ram", 0) > 100
                assert "SSD tier is off" in await problems(watch)
            assert index.read_bytes() == content

    run(work)


def test_a_store_that_another_process_has_is_left_to_it_and_named(home: FilePath) -> None:
    async def work() -> None:
        with on_disk():
            talk = await fill(home)
            store = find_paths({"AKASHIC_HOME": str(home)}).store_dir
            other = open_ssd(store, BUDGET, 1 << 40, SystemClock())
            try:
                async with serving(home, ram_bytes=1 << 20) as watch:
                    outcome = await talk.turns(watch, 2)
                    assert outcome.job.from_tier.get("ram", 0) > 100
                    assert "another process" in await problems(watch)
                assert other.verify() == []
            finally:
                other.close()

    run(work)


def test_a_clock_that_goes_backwards_costs_nothing(home: FilePath) -> None:
    async def work() -> None:
        clock = FakeClock(1e9)
        with on_disk(clock=clock):
            talk = await fill(home)
            for jump in (-9e8, 5e8, -1e8):
                clock.now += jump
                async with serving(home) as watch:
                    first = await talk.turn(watch)
                    clock.now -= 1e6
                    second = await talk.turn(watch)
                    assert second.job.from_tier["ssd"] > first.job.from_tier["ssd"] > 100
                    assert await problems(watch) == ""

    run(work)


@pytest.mark.parametrize("tier", ["ram", "ssd"])
def test_a_budget_that_the_machine_does_not_have_is_refused_with_numbers(home: FilePath, tier: str) -> None:
    settings = load(home / "config.toml", env={}, flags={f"cache.{tier}_bytes": "900TiB"})
    with pytest.raises(ConfigError, match=r"921600\.00 GiB") as refused:
        Service(settings, find_paths({"AKASHIC_HOME": str(home)}))
    assert f"cache.{tier}_bytes" in str(refused.value.hint)
