"""What the tiers give back against the naive twin: whatever was evicted, lost or interrupted, each answer is the twin's."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path as FilePath
from unittest import mock

import pytest

from akashic_daemon.cache.compaction import Holes
from akashic_daemon.config import ScheduleSection
from akashic_daemon.program.active import active_cache
from akashic_daemon.program.path import Path
from akashic_daemon.schedule.request import State
from paths_strategy import next_turn, random_path
from tiers_driver import BLOCK, Breakable, Daemon, Tiers, small_blocks


class World:
    """Random requests on a small engine with tiers, and everything that can go wrong between two steps."""

    def __init__(self, seed: int, folder: FilePath, *, is_lossy: bool) -> None:
        self.chance = chance = random.Random(seed)
        self.is_lossy = is_lossy
        cells = chance.choice((64, 96, 160, 400))
        engine = Breakable(
            kv_cells=cells, max_sequences=chance.choice((3, 4, 6, 16)), end_every=chance.choice((5, 29)),
            hole_s=chance.choice((0.0, 1.0)),
        )  # fmt: skip
        ram = chance.choice((0, 40_000, 1 << 20)) if is_lossy else chance.choice((0, 1 << 20))
        ssd = folder if chance.random() < 0.7 or not ram else None
        self.daemon = Daemon(
            Tiers(ssd, ram_bytes=ram, ssd_bytes=chance.choice((400_000, 16 << 20)) if is_lossy else 16 << 20),
            engine,
            ScheduleSection(
                max_running=chance.choice((1, 2, 4)),
                prefill_tokens=chance.choice((16, 64)),
                prefill_tokens_busy=chance.choice((3, 16)),
            ),
        )
        if is_lossy:
            engine.fails = lambda call: call != "decode" and chance.random() < 0.03
            self.daemon.costs.pays = lambda: chance.random() < 0.9
        self.paths: list[Path] = []
        self.counts: Counter[str] = Counter()
        self.checked = 0

    def new_path(self) -> Path:
        chance = self.chance
        if self.paths and chance.random() < 0.75:
            old = chance.choice(self.paths[-12:])
            if chance.random() < 0.3:
                cut = old.prefix(chance.randint(1, len(old)))
                old = cut if not active_cache(cut).inserting else old
            return next_turn(chance, old, longest=12, drop=0.3, drop_tokens=chance.randint(1, 12), repos=0.2)
        return random_path(chance, steps=chance.randint(1, 9), longest=12)

    def submit(self) -> None:
        path = self.new_path()
        if active_cache(path).tokens > self.daemon.engine.capabilities.kv_cells // 2 or len(path) > 160:
            return
        _, told = self.daemon.submit(path, max_tokens=self.chance.randint(1, 20), session=self.chance.choice("abc"))
        if told.error is None:
            self.counts["asked"] += 1

    def act(self) -> None:
        chance, daemon = self.chance, self.daemon
        roll = chance.random()
        if roll < 0.12 and len(daemon.loop._admission.waiting) < 6:
            self.submit()
        elif roll < 0.16:
            daemon.empty_engine()
            self.counts["emptied"] += 1
        elif roll < 0.19:
            daemon.empty_ram(lambda: chance.random() < 0.3, stored_only=not self.is_lossy)
        elif roll < 0.20 and self.is_lossy:
            self.counts["lost"] += daemon.lose(chance, 0.1)
        elif roll < 0.21:
            running = daemon.loop._all()
            if running:
                job = chance.choice(running)
                self.counts[f"cancelled in {job.state}"] += 1
                daemon.cancel(job)
        elif roll < 0.215 and len(daemon.loop._running) > 1:
            job = chance.choice(daemon.loop._running)
            self.counts[f"preempted in {job.state}"] += 1
            daemon.loop._preempt(job)
        elif roll < 0.22:
            daemon.loop.tiering.park()
        elif roll < 0.23 and self.paths and daemon.loop.index is not None:
            key = daemon.loop.index.ops.key(chance.choice(self.paths[-12:]))
            daemon.loop.tiering.hint(chance.choice("abc"), key, 0.0)
            self.counts["hinted"] += 1
        elif roll < 0.232 and self.is_lossy and daemon.loop._running:
            self.fail_compaction()
        else:
            daemon.step()
        self.counts["reloading"] += any(r.state is State.RELOAD for r in daemon.loop._running)
        if chance.random() < 0.5:
            daemon.mover.run_pending(chance.randint(1, 3))
        if not daemon.loop.busy and chance.random() < 0.5:
            daemon.loop.tiering.idle_work()

    def fail_compaction(self) -> None:
        """Let closing holes fail, upon which the loop empties the engine."""
        loop, fails = self.daemon.loop, self.daemon.engine.fails
        self.daemon.engine.fails = lambda call: call == "save"
        with mock.patch.object(Holes, "pays", return_value=True):
            loop._close_holes()
        self.daemon.engine.fails = fails
        self.counts["emptied by a failure"] += not loop._running

    def account(self) -> None:
        """Hold every answer that ended to the twin."""
        for job, told in self.daemon.jobs[self.checked :]:
            if not told.is_over:
                break
            self.checked += 1
            if told.error is not None:
                self.counts[type(told.error).__name__] += 1
                assert "internal" not in told.error.message, told.error
                assert not (self.is_lossy is False and "told to fail" in told.error.message)
                continue
            if not job.started:
                continue
            self.daemon.check_answer(job)
            self.counts["answered"] += 1
            self.counts["from ram"] += job.from_tier.get("ram", 0)
            self.counts["from ssd"] += job.from_tier.get("ssd", 0)
            computed = job.generated[: max(0, len(job.generated) - 1)]
            self.paths.append(job.route.path.then(computed))

    def run(self, acts: int) -> None:
        for _ in range(acts):
            self.act()
            self.daemon.check()
            self.account()
        self.finish()

    def finish(self) -> None:
        for _ in range(20_000):
            if not self.daemon.loop.busy:
                break
            self.daemon.step()
            self.daemon.mover.run_pending()
            self.daemon.check()
        self.account()
        assert self.checked == len(self.daemon.jobs), "a request never ended"
        self.daemon.check_at_rest()


def run_world(seed: int, *, is_lossy: bool, acts: int = 250) -> World:
    with tempfile.TemporaryDirectory(prefix="ak-") as folder, small_blocks():
        world = World(seed, FilePath(folder) / "store", is_lossy=is_lossy)
        try:
            world.run(acts)
        finally:
            world.daemon.close()
        return world


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_whatever_is_evicted_lost_cancelled_or_preempted_each_answer_is_the_twins(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 10):
        counts += run_world(seed, is_lossy=True).counts
    assert counts["answered"] > 100, counts
    assert counts["from ram"] > 50, counts
    assert counts["from ssd"] > 50, counts
    assert counts["reloading"] > 10, counts
    assert counts["hinted"] > 5, counts


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_without_faults_it_holds_too(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 10):
        counts += run_world(1000 + seed, is_lossy=False).counts
    assert counts["answered"] > 100, counts


@pytest.mark.parametrize("tier", ["ram", "ssd"])
@pytest.mark.parametrize("seed", range(12))
def test_a_continuation_of_what_is_stored_computes_its_new_tokens_and_a_block(
    home: FilePath, seed: int, tier: str
) -> None:
    """Invariant 3: after each turn the engine forgets everything, and for `ssd` the RAM tier too."""
    chance = random.Random(seed)
    with small_blocks():
        daemon = Daemon(Tiers(home / "store", ram_bytes=1 << 20), Breakable(kv_cells=2000, max_sequences=8))
        path = random_path(chance, steps=6, longest=20)
        for turn in range(8):
            known = len(path) if turn else 0
            path = next_turn(chance, path, longest=30, drop=0.5, drop_tokens=chance.randint(1, 20), repos=0.3)
            job = daemon.ask(path, max_tokens=chance.randint(1, 30), session="s")
            assert job.computed <= len(path) - known + BLOCK, (turn, job.computed, len(path) - known, job.from_tier)
            path = path.then(job.generated[:-1])
            daemon.empty_engine()
            if tier == "ssd":
                daemon.empty_ram()
                assert not daemon.mover.arena.payloads
            daemon.check()
        daemon.check_at_rest()
        daemon.close()
