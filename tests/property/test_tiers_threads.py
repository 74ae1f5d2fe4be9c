"""Agents that edit at will on a service whose tiers run in threads, with few buffers, while everything is evicted."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path as FilePath
from unittest import mock

import pytest

from agents_fuzz import World
from akashic_daemon.tiers.costs import Costs
from akashic_daemon.tiers.jobs import Priority
from tiers_driver import small_blocks
from watched_service import Watch, watched


class TieredWorld(World):
    """Its engine is emptied, its RAM tier too, and its disk loses blocks while agents talk."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.flags |= {
            "cache.ram_bytes": self.chance.choice((0, 100_000, 4 << 20)),
            "cache.ssd_bytes": self.chance.choice((500_000, 16 << 20)),
        }
        self.has_ended = False

    async def run(self, home: FilePath, turns: int) -> None:
        async with watched(home, lambda _n, _p: self.engine, flags=self.flags) as watch:
            breaker = asyncio.create_task(self._break(watch))
            await asyncio.gather(*(self.live(watch, agent, turns) for agent in self.agents))
            self.has_ended = True
            await breaker
            await watch.check_index()
            await watch.service._host.on_engine_thread(lambda: self._check_at_rest(watch))

    async def _break(self, watch: Watch) -> None:
        service = watch.service
        mover, loop = service.tiers.mover, service._loop

        def evict() -> None:
            if loop.index is not None:
                loop.index.make_room(loop.index.cells_total)

        def drop() -> None:
            for block in mover.catalogue.blocks() if mover.catalogue is not None else ():
                if block.slots is not None and block not in mover._queued and self.chance.random() < 0.5:
                    mover.drop_from_ram(block)

        def lose() -> None:
            if mover.ssd is not None and loop.engine is not None:
                keys = [s.key for s in mover.ssd.labels(loop.engine.model.fingerprint) if s.size_bytes]
                mover.ssd._store.delete([k for k in keys if self.chance.random() < 0.05])

        while not self.has_ended:
            await service._host.on_engine_thread(evict)
            await asyncio.to_thread(mover.call, self.chance.choice((drop, drop, lose)), 60.0)
            self.count("broken")

    def _check_at_rest(self, watch: Watch) -> None:
        tiering, mover = watch.service._loop.tiering, watch.service.tiers.mover
        index = watch.service._loop.index
        assert index is not None
        assert tiering._exporter is not None
        tiering._exporter.flush(60.0)
        mover.call(mover.flush_writes, 60.0)
        mover.call(lambda: None, 60.0, priority=Priority.LAST)
        assert not index.running
        assert mover.catalogue is not None
        blocks = mover.catalogue.blocks()
        for pool in (mover.outgoing, mover.incoming):
            assert pool is not None
            assert pool.free_count == pool.count, "a buffer was lost"
        assert not [b for b in blocks if b.pins or b.is_moving]
        assert mover.arena.payloads == sum(b.slots is not None for b in blocks)
        self.counts["from ram"] = mover.moves.promoted_ram_blocks
        self.counts["from ssd"] = mover.moves.promoted_ssd_blocks


@pytest.mark.parametrize("first", [0, 4])
def test_with_real_threads_and_two_buffers_every_answer_is_the_twins(home: FilePath, first: int) -> None:
    counts: Counter[str] = Counter()
    with small_blocks(staging=2, is_stepped=False), mock.patch.object(Costs, "reload_pays", return_value=True):
        for seed in range(first, first + 3):
            folder = home / str(seed)
            folder.mkdir()
            world = TieredWorld(random.Random(seed).randrange(1 << 30))
            asyncio.run(asyncio.wait_for(world.run(folder, 8), 120))
            counts.update(world.counts)
    assert counts["broken"] > 10, counts
    assert counts["from ram"] + counts["from ssd"] > 1, counts
