"""A random schedule of everything that moves blocks: requests, movers, removal, renames, prunes, verify, hints, pins.

In one thread, on the fake engine: the same seed is the same run. Every answer is held to the naive twin; whenever all has
come to rest, sums are held to counters, the catalogue to the disk, and nothing may be left pinned, moving or taken.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path as FilePath

from akashic_daemon.config import ScheduleSection
from akashic_daemon.errors import Conflict
from akashic_daemon.program.path import Path
from akashic_daemon.tiers.removal import Choice, forget, prune, rename, verify, would_prune
from block_stores import FakeClock
from busy_daemon import small_extents
from paths_strategy import next_turn, random_path
from power_cuts import Bulky
from tiers_driver import Daemon, Tiers, Told, small_blocks

_SESSIONS = 6
_LONGEST = 110


class Schedule:
    """Sessions on a daemon whose tiers are too small for them."""

    def __init__(self, seed: int, folder: FilePath) -> None:
        self.chance = chance = random.Random(seed)
        self.clock = FakeClock()
        self.tiers = Tiers(
            folder, ram_bytes=chance.choice((0, 60_000, 200_000)), ssd_bytes=chance.choice((200_000, 600_000)),
            clock=self.clock,
        )  # fmt: skip
        self.daemon = Daemon(
            self.tiers,
            Bulky(
                kv_cells=chance.choice((200, 400)),
                max_sequences=chance.choice((4, 8)),
                hole_s=chance.choice((0.0, 1.0)),
            ),
            ScheduleSection(max_running=3, prefill_tokens=32, prefill_tokens_busy=8),
        )
        self.paths = {f"s{n}": random_path(chance, steps=4, longest=14) for n in range(_SESSIONS)}
        self.open: dict[str, tuple[Path, Told]] = {}
        self.names = iter(range(1 << 30))
        self.counts: Counter[str] = Counter()

    # -- what sessions do --------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Let a session go on, or begin anew."""
        chance = self.chance
        name = chance.choice(sorted(self.paths))
        if name in self.open:
            return
        path = self.paths[name]
        if len(path) > _LONGEST:
            path = random_path(chance, steps=4, longest=14)
        path = next_turn(chance, path, longest=14, drop=0.25, drop_tokens=10, repos=0.15)
        _, told = self.daemon.submit(path, max_tokens=chance.randint(1, 12), session=name)
        self.open[name] = path, told

    def cancel(self) -> None:
        """Let a client leave."""
        running = self.daemon.loop._all()
        if running:
            self.daemon.cancel(self.chance.choice(running))

    def hint(self) -> None:
        """Expect a session, or what nobody ever asked for: early, late, for ever."""
        chance, loop = self.chance, self.daemon.loop
        assert loop.index is not None
        wrong = chance.random() < 0.5
        path = random_path(chance, steps=4, longest=14) if wrong else self.paths[chance.choice(sorted(self.paths))]
        name = chance.choice([*sorted(self.paths), "nobody"])
        loop.tiering.hint(name, loop.index.ops.key(path), chance.choice((0.0, 0.001, 1e9)))
        self.counts["wrong hints"] += wrong

    def remove(self) -> None:
        """Forget a session that asks nothing now; another takes its place."""
        name = self.chance.choice(sorted(self.paths))
        if name in self.open:
            return
        self.daemon.loop.tiering.regroup(name, None)
        self.daemon.mover.run_pending()
        forget(self.daemon.mover, name, wipe=self.chance.random() < 0.3)
        del self.paths[name]
        self.paths[f"n{next(self.names)}"] = random_path(self.chance, steps=4, longest=14)

    def rename(self) -> None:
        """Give a session another name."""
        name = self.chance.choice(sorted(self.paths))
        if name in self.open:
            return
        new = f"n{next(self.names)}"
        self.daemon.loop.tiering.regroup(name, new)
        self.daemon.mover.run_pending()
        rename(self.daemon.mover, name, new)
        self.paths[new] = self.paths.pop(name)

    def branch(self) -> None:
        """Let one session go on from another's path."""
        old, new = (self.chance.choice(sorted(self.paths)) for _ in range(2))
        if new not in self.open:
            self.paths[new] = self.paths[old]

    # -- what people and movers do -----------------------------------------------------------------------------

    def prune(self) -> None:
        """Prune somehow; a dry run changes nothing, and tells what then goes."""
        chance, mover = self.chance, self.daemon.mover
        choice = chance.choice(
            (Choice(to_bytes=chance.randrange(400_000)), Choice(unused_for_s=float(chance.randrange(200))), Choice(other_than="fake"))
        )  # fmt: skip
        while mover._store_next():  # else a pause of the store's does it between the looks
            pass
        mover.flush_writes()  # as a dry run does first
        before = self._on_disk()
        told = would_prune(mover, choice)
        assert self._on_disk() == before
        gone = prune(mover, choice)
        if choice.to_bytes is None:
            assert told.ssd_blocks == gone.ssd_blocks

    def _on_disk(self) -> set[str]:
        ssd = self.daemon.mover.ssd
        assert ssd is not None
        return {stored.key for stored in ssd.labels("fake")}

    def verify(self) -> None:
        """Look for damage: there is none."""
        found, _ = verify(self.daemon.mover, fix=self.chance.random() < 0.3)
        assert found == []

    def read_ahead(self) -> None:
        """Bring a session's blocks into RAM."""
        loop, mover = self.daemon.loop, self.daemon.mover
        assert loop.index is not None
        pieces = loop.tiering.pieces(loop.index.ops.key(self.paths[self.chance.choice(sorted(self.paths))]))
        mover.prefetch([p.block for p in pieces])

    def lose_ram(self) -> None:
        """Drop RAM copies, others' only ones too."""
        self.daemon.empty_ram(lambda: self.chance.random() < 0.4, stored_only=self.chance.random() < 0.8)

    def evict(self) -> None:
        """Let the engine make room."""
        assert self.daemon.loop.index is not None
        self.daemon.loop.index.make_room(self.chance.randrange(self.daemon.loop.index.cells_total))

    def pass_time(self) -> None:
        """Let time pass, or the clock be set back."""
        self.clock.now = max(0.0, self.clock.now + self.chance.choice((1.0, 60.0, 90_000.0, -5_000.0)))

    def close_holes(self) -> None:
        """Compact the engine's cache."""
        if self.daemon.loop.index is not None:
            self.daemon.loop.index.compact()

    # -- running it --------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Do one thing at random, then a bit of what waits."""
        roll = self.chance.random()
        daemon = self.daemon
        if roll < 0.14:
            self.ask()
        elif roll < 0.30:
            rare = self.chance.choice(
                (self.cancel, self.hint, self.hint, self.remove, self.rename, self.branch, self.prune, self.verify,
                 self.read_ahead, self.lose_ram, self.evict, self.pass_time, self.close_holes)
            )  # fmt: skip
            try:
                rare()
            except Conflict:
                self.counts["conflicts"] += 1
            self.counts[rare.__name__] += 1
        else:
            daemon.step()
        if self.chance.random() < 0.6:
            daemon.mover.run_pending(self.chance.randint(1, 3))
        if not daemon.loop.busy and self.chance.random() < 0.5:
            daemon.loop.tiering.idle_work()
        assert daemon.mover.arena.used_bytes <= self.tiers.ram_bytes
        self.account()

    def account(self) -> None:
        """Hold what ended to the twin."""
        for name, (path, told) in list(self.open.items()):
            if not told.is_over:
                continue
            del self.open[name]
            job = next(j for j, t in self.daemon.jobs if t is told)
            self.daemon.jobs.remove((job, told))
            assert told.error is None, told.error
            if job.started:
                self.daemon.check_answer(job)
                self.counts["answered"] += 1
                self.counts["from ram"] += job.from_tier.get("ram", 0)
                self.counts["from ssd"] += job.from_tier.get("ssd", 0)
                self.paths[name] = path.then(job.generated[: max(0, len(job.generated) - 1)])

    def rest(self) -> None:
        """Let everything end, and hold every sum to its counter."""
        for _ in range(20_000):
            if not self.daemon.loop.busy:
                break
            self.daemon.step()
            self.daemon.mover.run_pending()
            self.account()
        self.daemon.check_at_rest()
        mover = self.daemon.mover
        assert mover.catalogue is not None
        assert mover.ssd is not None
        blocks = mover.catalogue.blocks()
        held = [b.slots for b in blocks if b.slots is not None]
        assert mover.arena.payload_bytes == sum(s.size_bytes for s in held)
        assert mover.arena.slots_used == sum(len(s.numbers) for s in held)
        on_disk = {s.key: s.size_bytes for s in mover.ssd.labels("fake")}
        assert {b.key for b in blocks if b.on_ssd} == {k for k, size in on_disk.items() if size}
        assert {b.key for b in blocks if b.is_labelled} == set(on_disk), "labels that the catalogue doesn't know"
        assert {g for b in blocks for g in b.groups} <= {*self.paths, ""}, "a session that is gone has blocks"
        stats = mover.ssd.stats()
        assert stats.records == len(on_disk)
        assert stats.used_bytes <= self.tiers.ssd_bytes
        assert mover.ssd.verify() == []
        for block in blocks:
            assert block.parent is None or block in block.parent.children

    def reopen(self) -> None:
        """Stop, and find the same figures when it is opened again."""
        self.rest()
        assert self.daemon.mover.ssd is not None
        before = self.daemon.mover.ssd.stats()
        self.daemon.close()
        ssd = self.tiers.open_ssd()
        after = ssd.stats()
        assert (after.used_bytes, after.records) == (before.used_bytes, before.records), "counters drifted"
        assert ssd.verify() == []
        ssd.close()


def run_schedule(seed: int, folder: FilePath, acts: int, *, rest_every: int = 200) -> Counter[str]:
    """Run so many acts, resting now and then; return what happened."""
    with small_blocks(), small_extents():
        schedule = Schedule(seed, folder)
        for number in range(1, acts + 1):
            schedule.act()
            if number % rest_every == 0:
                schedule.rest()
        schedule.reopen()
        return schedule.counts
