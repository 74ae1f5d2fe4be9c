"""Upkeep of memory beside the daemon's work: only while it is idle, cancellable, and gone on with after any end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from akashic_daemon.config import load
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import ConfigError, StoreError, StoreUnwritable
from akashic_daemon.memory import reconcile
from akashic_daemon.memory.answers import Selector
from akashic_daemon.memory.compactors import Compactor, Extractive
from akashic_daemon.memory.extents import open_extents
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.memory.reconcile import Outcome, Rejected, Task
from akashic_daemon.memory_service.service import MemoryService
from akashic_daemon.paths import find_paths
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock
from awaited import awaited
from fake_service import running_service
from hashed_words import HashedWords


def facts(count: int, first: int = 0) -> list[Said]:
    return [
        Said("Ann", f"On day {n} the parrot number {n * 7} ate {n * 13} mangoes in room {n * 3} of house {n}", f"m{n}")
        for n in range(first, first + count)
    ]


async def hashed() -> HashedWords:
    return HashedWords()


def service(
    home: Path, compactor: Compactor | None = None, is_idle: Callable[[], bool] = lambda: True
) -> MemoryService:
    return MemoryService(find_paths({"AKASHIC_HOME": str(home)}), hashed, compactor=compactor, is_idle=is_idle)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the test's own limit ends it."""
    while not condition():
        await asyncio.sleep(0.01)


async def waiting(memory: MemoryService) -> int:
    return sum(space.waiting_chunks for space in (await memory.stats()).namespaces)


async def until_none_waits(memory: MemoryService) -> None:
    while await waiting(memory):
        await asyncio.sleep(0.01)


@awaited
async def test_sealed_chunks_are_reconciled_by_themselves(tmp_path: Path) -> None:
    memory = service(tmp_path)
    await memory.add("user", facts(100), session="s")
    await until_none_waits(memory)
    *sealed, opened = await memory.chunks()
    assert sealed
    for chunk in sealed:
        assert len((await memory.chunk(chunk.id)).versions) == 1
    assert (await memory.chunk(opened.id)).versions == ()
    assert (await memory.stats()).namespaces[0].actual_rho is not None
    await memory.close()


@awaited
async def test_nothing_is_reconciled_while_somebody_waits_for_the_engine(tmp_path: Path) -> None:
    busy = True
    looks = 0

    def is_idle() -> bool:
        nonlocal looks
        looks += 1
        return not busy

    memory = service(tmp_path, is_idle=is_idle)
    await memory.add("user", facts(100), session="s")
    await until(lambda: looks >= 3)
    assert await waiting(memory) > 0
    assert memory.worker.reconciled == 0
    busy = False
    await until_none_waits(memory)
    await memory.close()


class Gate(Extractive):
    """A compactor that tells when it began, and goes on when it is let."""

    name = "gate"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.open = asyncio.Event()

    async def compact(self, task: Task) -> Outcome | Rejected:
        self.begun.set()
        await self.open.wait()
        return task.extractive


@awaited
async def test_a_chunk_that_was_cancelled_waits_for_the_next_start(tmp_path: Path) -> None:
    gate = Gate()
    memory = service(tmp_path, gate)
    await memory.add("user", facts(100), session="s")
    await gate.begun.wait()
    assert len(await memory.search("mangoes", limit=3)) == 3  # searches don't wait for upkeep
    before = await waiting(memory)
    await memory.close()
    again = service(tmp_path)
    assert await waiting(again) == before
    again.start()
    await until_none_waits(again)
    await again.close()


@awaited
async def test_what_is_forgotten_while_it_is_reconciled_leaves_nothing(tmp_path: Path) -> None:
    gate = Gate()
    memory = service(tmp_path, gate)
    await memory.add("user", facts(100), session="s")
    await gate.begun.wait()
    await memory.forget(Selector(session="s"), dry_run=False)
    gate.open.set()
    await until_none_waits(memory)
    assert (await memory.stats()).namespaces[0].turns == 0
    assert memory.problems() == ()
    await memory.close()


class Nonsense:
    """A model compactor whose every answer is rejected."""

    name = "nonsense"

    async def compact(self, task: Task) -> Outcome | Rejected:
        return Rejected("nonsense: its answer is no JSON", tokens=50)


@awaited
async def test_a_rejected_answer_is_said_counted_and_done_without_a_model(tmp_path: Path) -> None:
    memory = service(tmp_path, Nonsense())
    await memory.add("user", facts(100), session="s")
    await until_none_waits(memory)
    stats = await memory.stats()
    assert stats.model_tokens == 50 * memory.worker.reconciled > 0
    assert "nonsense: its answer is no JSON" in stats.problems[0]
    card = await memory.chunk((await memory.chunks())[0].id)
    assert [version.made_by for version in card.versions] == ["extractive"]
    await memory.close()


@awaited
async def test_a_chunk_that_fails_is_said_and_passed_over_and_done_when_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = service(tmp_path, is_idle=lambda: False)
    await memory.add("user", facts(300), session="s")
    first, *others = [chunk.id for chunk in await memory.chunks() if chunk.sealed_at_s is not None]
    assert others

    def refusing(m: Memory, task: Task, outcome: Outcome) -> list[int]:
        if task.chunk.id == first:
            raise StoreUnwritable("writing memory: the disk is full")
        return keep(m, task, outcome)

    keep = reconcile.store
    monkeypatch.setattr(reconcile, "store", refusing)
    await memory.compact()
    assert await waiting(memory) == 1
    assert "the disk is full" in memory.problems()[0]
    monkeypatch.undo()
    await memory.compact()
    assert await waiting(memory) == 0
    assert memory.problems() == ()
    await memory.close()


@awaited
async def test_compacting_on_demand_does_not_wait_to_be_idle(tmp_path: Path) -> None:
    memory = service(tmp_path, is_idle=lambda: False)
    await memory.add("user", facts(100), session="s")
    await memory.seal("user")
    assert await waiting(memory) > 0
    stats = await memory.compact()
    assert stats.namespaces[0].waiting_chunks == 0
    await memory.close()


@awaited
async def test_extents_that_a_crash_left_out_of_step_are_brought_in_line_at_the_next_start(tmp_path: Path) -> None:
    memory = service(tmp_path)
    await memory.add("user", facts(200), session="s")
    await memory.compact()
    sealed = [chunk.id for chunk in await memory.chunks() if chunk.sealed_at_s is not None]
    await memory.close()
    extents = open_extents(find_paths({"AKASHIC_HOME": str(tmp_path)}).memory_extents, SystemClock())
    assert extents.chunks("user") == set(sealed)
    extents.drop("user", sealed[:2])
    extents.keep("user", 999, [], None)
    extents.close()
    again = service(tmp_path)
    again.start()

    async def held() -> set[int]:
        def work(memory: Memory) -> set[int]:
            assert memory.extents is not None
            return memory.extents.chunks("user")

        return await again._run(work)

    while await held() != set(sealed):
        await asyncio.sleep(0.01)
    await again.close()


@awaited
async def test_memory_goes_on_without_extents_that_cannot_be_opened_and_says_so(tmp_path: Path) -> None:
    paths = find_paths({"AKASHIC_HOME": str(tmp_path)})
    paths.memory_extents.mkdir(parents=True)
    (paths.memory_extents / "blocks.sqlite").write_bytes(b"this is no database" * 100)
    memory = service(tmp_path)
    await memory.add("user", facts(100), session="s")
    await memory.compact()
    assert len(await memory.search("mangoes", limit=3)) == 3
    assert "don't stand in extents" in (await memory.stats()).problems[0]
    assert await memory.extents() == []
    with pytest.raises(StoreError, match="nothing was forgotten"):
        await memory.forget(Selector(session="s"), dry_run=False)
    assert len((await memory.forget(Selector(session="s"))).turns) == 100
    await memory.close()
    assert (paths.memory_extents / "blocks.sqlite").read_bytes() == b"this is no database" * 100


_KILLED = """
    import asyncio, sys
    from pathlib import Path
    sys.path[:0] = {path!r}
    from test_memory_upkeep import facts, service

    async def main():
        memory = service(Path({home!r}))
        for first in range(0, 4000, 100):
            await memory.add("user", facts(100, first), session="s")
            print(first + 100, flush=True)
    asyncio.run(main())
"""


@pytest.mark.parametrize("batches", [1, 6])
def test_a_kill_loses_no_turn_that_was_added_and_what_waited_is_reconciled(tmp_path: Path, batches: int) -> None:
    here = Path(__file__).resolve()
    path = [str(here.parent), str(here.parents[1]), *sys.path]
    code = textwrap.dedent(_KILLED.format(path=path, home=str(tmp_path)))
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert child.stdout is not None
    for _ in range(batches):
        added = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()

    async def check() -> None:
        memory = service(tmp_path)
        memory.start()
        stats = await memory.compact()
        assert stats.namespaces[0].turns >= added
        assert stats.namespaces[0].waiting_chunks == 0
        await memory.close()

    asyncio.run(check())
    store = open_memory_store(find_paths({"AKASHIC_HOME": str(tmp_path)}).memory_database, SystemClock())
    for chunk in store.chunks_of("user"):
        assert len(store.chunk_versions(chunk.id)) == (0 if chunk.sealed_at_s is None else 1)
    kept = [turn.id for chunk in store.chunks_of("user") for turn in store.turns_of_chunk(chunk.id)]
    assert len(kept) == len(set(kept)) == store.namespaces()["user"]
    store.close()


# -- in the daemon ---------------------------------------------------------------------------------------------


def talking(_name: str, _path: Path) -> FakeEngine:
    return FakeEngine(kv_cells=65_536, window_tokens=32_768)


@awaited
async def test_the_loaded_model_is_asked_in_the_background_and_leaves_no_session(home: Path) -> None:
    """The fake engine talks nonsense: it is rejected, which tells that it was asked."""
    async with running_service(home, talking, flags={"memory.compactor": "model"}) as running:
        await running.memory.add("user", facts(6), session="s")
        await running.memory.seal("user")
        await running.memory.compact()
        stats = await running.memory.stats()
        assert stats.model_tokens > 100
        assert any("fake" in problem for problem in (await running.status()).warnings)
        assert (await running.list_sessions()).sessions == []


def test_a_server_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compactor_model"):
        load(tmp_path / "c.toml", env={}, flags={"memory.compactor": "http://127.0.0.1:1/v1"})
    with pytest.raises(ConfigError, match="no compactor"):
        load(tmp_path / "c.toml", env={}, flags={"memory.compactor": "gpt"})
