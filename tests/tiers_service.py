"""A service with tiers on the fake engine, and what tests do to it: wait until all is stored, empty a tier."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.protocol.native import Reuse
from akashic_daemon.protocol.tiers import Tier, TierReport
from akashic_daemon.service import Service
from akashic_daemon.tiers.block import Block
from akashic_daemon.tiers.costs import Costs
from akashic_daemon.tiers.jobs import Priority
from fake_service import NEVER, answer, ask, running_service, user

LONG = "a question that goes on for quite a while, as questions to agents do. " * 8
TIERS = {"cache.ram_bytes": "1MiB", "cache.ssd_bytes": "256MiB"}

Check = Callable[[Service], Awaitable[None]]


def on_service(
    home: Path,
    check: Check,
    *,
    flags: dict[str, Any] | None = None,
    kv_cells: int = 8192,
    reload_pays: bool = True,
) -> None:
    """Run `check` on a service with tiers; what is cheaper is given, for the fake engine's speed means nothing."""

    async def run() -> None:
        def engine(_name: str, _path: Path) -> FakeEngine:
            return FakeEngine(kv_cells=kv_cells, window_tokens=4096, end_every=NEVER)

        async with running_service(home, engine, flags=TIERS if flags is None else flags) as service:
            assert service._loading is not None
            await asyncio.wait({service._loading})
            if (exporter := service._loop.tiering._exporter) is not None:
                exporter.min_recompute_s = 0.0  # everything is worth writing, however fast this machine is
            await check(service)

    with mock.patch.object(Costs, "reload_pays", return_value=reload_pays):
        asyncio.run(run())


async def say(service: Service, session: str, text: str = LONG, **options: Any) -> Reuse:
    """Ask one question in a session."""
    return (await answer(service, ask(user(text), session=session, **options))).reuse


async def settled(service: Service) -> TierReport:
    """Wait until everything computed is copied out and written, and return the report."""
    exporter = service._loop.tiering._exporter
    assert exporter is not None

    async def wait() -> None:
        while await service._host.on_engine_thread(lambda: exporter.waiting):
            await asyncio.sleep(0.001)
        while service.tiers.mover.waiting_writes:
            await asyncio.to_thread(lambda: service.tiers.mover.call(lambda: None, priority=Priority.LAST))
        await asyncio.to_thread(lambda: service.tiers.mover.call(lambda: None, priority=Priority.LAST))

    await asyncio.wait_for(wait(), 60)
    with mock.patch(
        "akashic_daemon.tier_service.upkeep._FIGURES_S", 60.0
    ):  # no older figures, however slow this machine is
        return await service.upkeep.report()


def tier(report: TierReport, name: str) -> Tier:
    """Return one tier of a report."""
    return next(t for t in report.tiers if t.tier == name)


async def empty_engine(service: Service) -> None:
    """Let the engine lose all its cells."""

    def clear() -> None:
        assert service._loop.index is not None
        service._loop.index.clear()

    await service._host.on_engine_thread(clear)


async def empty_ram(service: Service) -> None:
    """Let the RAM tier lose all its blocks."""
    mover = service.tiers.mover

    def clear() -> None:
        assert mover.catalogue is not None
        for block in mover.catalogue.blocks():
            if block.slots is not None:
                mover.drop_from_ram(block)

    await asyncio.to_thread(lambda: mover.call(clear))


def catalogue(service: Service) -> list[Block]:
    """Return all blocks that the tiers know."""
    found = service.tiers.mover.catalogue
    assert found is not None
    return found.blocks()


def stored_bytes(home: Path) -> bytes:
    """Return everything in the block store's files."""
    store = home / "store"
    return b"".join(p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file() and "akashic.sqlite" not in p.name)
