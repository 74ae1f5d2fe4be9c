"""An engine that fails at its N-th call, and a busy daemon on it: requests end well or by an error, and nothing is left.

Of calls that may leave anything half done (sharing, releasing) half is done; the others do nothing, as their contract says.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from unittest import mock

from akashic_daemon.config import ScheduleSection
from akashic_daemon.engine.base import PackedRun, Sampler, SamplingParams, SavedCells
from akashic_daemon.errors import EngineError
from akashic_daemon.schedule.request import Request
from akashic_daemon.types import SequenceId
from paths_strategy import next_turn, random_path
from tiers_driver import Breakable, Daemon, Tiers, Told, small_blocks

_CELLS = 260
_SEQUENCES = 7


@dataclass(slots=True)
class Faults:
    """Fails call number `fail_at` (from 1), and all later ones where it stays broken; as a bug where `is_bug`.

    among: the kinds of calls that are counted and may fail; all, if empty.
    """

    fail_at: int | None
    stays_broken: bool = False
    is_bug: bool = False
    among: frozenset[str] = frozenset()
    total: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def hit(self, call: str) -> bool:
        """Count a call; tell if it fails."""
        self.calls[call] += 1
        if self.among and call not in self.among:
            return False
        self.total += 1
        at = self.fail_at
        fails = at is not None and (self.total >= at if self.stays_broken else self.total == at)
        if fails:
            self.failed[call] += 1
        return fails

    def check(self, call: str) -> None:
        """Count a call that does nothing when it fails."""
        if self.hit(call):
            raise self.error(call)

    def error(self, call: str) -> Exception:
        """Return what a call fails by."""
        return RuntimeError(f"{call} met a bug") if self.is_bug else EngineError(f"{call} was told to fail")


class FaultySampler:
    """A sampler whose calls count."""

    def __init__(self, faults: Faults, sampler: Sampler) -> None:
        self._faults, self._sampler = faults, sampler

    def sample(self, item: int) -> int:
        """Sample, or fail."""
        self._faults.check("sample")
        return self._sampler.sample(item)

    def accept(self, tokens: Sequence[int]) -> None:
        """Accept, or fail."""
        self._faults.check("accept")
        self._sampler.accept(tokens)

    def close(self) -> None:
        """Close."""
        self._sampler.close()


class Faulty(Breakable):
    """The fake engine, whose every call may fail."""

    def __init__(self, faults: Faults, *, hole_s: float = 0.0) -> None:
        super().__init__(kv_cells=_CELLS, max_sequences=_SEQUENCES, end_every=29, hole_s=hole_s)
        self.faults = faults

    def _maybe_fail(self, call: str) -> None:
        self.faults.check(call)

    def sampler(self, params: SamplingParams) -> Sampler:  # type: ignore[override]  # one that may fail
        """Return a sampler that may fail, or fail."""
        self.faults.check("sampler")
        return FaultySampler(self.faults, super().sampler(params))

    def share(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        """Share, or fail after half of it."""
        if self.faults.hit("share"):
            super().share(source, target, start, (start + end) // 2)
            raise self.faults.error("share")
        super().share(source, target, start, end)

    def release(self, sequence: SequenceId, start: int = 0, end: int = -1) -> None:
        """Release, or fail after half of it."""
        if self.faults.hit("release"):
            held = sorted(p for p in self.cells[sequence] if p >= start and (end < 0 or p < end))
            if held[: len(held) // 2]:
                super().release(sequence, start, held[len(held) // 2])
            raise self.faults.error("release")
        super().release(sequence, start, end)

    def load(self, saved: SavedCells, sequence: SequenceId, ranges: Sequence[tuple[int, int]]) -> None:
        """Load, or fail."""
        self.faults.check("load")
        super().load(saved, sequence, ranges)

    def import_runs(self, runs: Sequence[PackedRun], sequence: SequenceId) -> None:
        """Import, or fail; the fake's own way to load isn't a call of the daemon's."""
        self.faults.check("import")
        with mock.patch.object(self, "faults", Faults(None)):
            super().import_runs(runs, sequence)


class Busy:
    """Several sessions at once on a small engine with tiers: edits, cancels, preemption, parking, hints, compaction.

    The same seed does the same, as far as the engine lets it.
    """

    def __init__(self, folder: FilePath | None, faults: Faults, *, seed: int = 5) -> None:
        self.chance = random.Random(seed)
        self.faults = faults
        self.daemon = Daemon(
            Tiers(folder, ram_bytes=1 << 20),
            Faulty(faults, hole_s=1.0),
            ScheduleSection(max_running=4, prefill_tokens=24, prefill_tokens_busy=8),
        )
        self.paths = [random_path(self.chance, steps=3, longest=14) for _ in range(4)]
        self.open: list[tuple[int, Request, Told]] = []
        self.failed: list[str] = []

    def submit(self) -> None:
        """Let a session that waits for nothing ask its next turn."""
        chance, busy = self.chance, {number for number, _, _ in self.open}
        idle = [n for n in range(len(self.paths)) if n not in busy]
        if not idle:
            return
        number = chance.choice(idle)
        path = self.paths[number]
        if len(path) > 90:
            path = random_path(chance, steps=3, longest=14)
        path = next_turn(chance, path, longest=14, drop=0.4, drop_tokens=8, insert=0.4, repos=0.3)
        job, told = self.daemon.submit(path, max_tokens=chance.randint(2, 14), session=f"s{number}")
        self.open.append((number, job, told))

    def act(self) -> None:
        """Do one thing."""
        chance, daemon, loop = self.chance, self.daemon, self.daemon.loop
        if loop.engine is None:  # it was put away: the next request loads it again
            loop._guard.run(self.load)
            return
        roll = chance.random()
        if roll < 0.3:
            self.submit()
        elif roll < 0.33 and self.open:
            daemon.cancel(chance.choice(self.open)[1])
        elif roll < 0.36 and len(loop._running) > 1:
            loop._guard.run(lambda: loop._preempt(loop._running[-1]))
        elif roll < 0.42 and loop.index is not None:
            loop._guard.run(lambda: loop._make_room(_CELLS))
        elif roll < 0.46:
            daemon.empty_ram()
        elif roll < 0.48:
            loop._guard.run(loop.tiering.park)
        elif roll < 0.52 and loop.index is not None:
            loop.tiering.hint("s0", loop.index.ops.key(self.paths[0]), 0.0)
        elif roll < 0.54:
            loop._holes.peak = 1 << 20
        else:
            self.step()
        daemon.mover.run_pending(chance.randint(0, 2))
        if not loop.busy:
            loop._guard.run(loop.tiering.idle_work)
        self.account()

    def load(self) -> None:
        """Load the model again, as the next request does."""
        engine = Faulty(self.faults, hole_s=1.0)
        self.daemon.loop.set_engine(lambda: engine)
        self.daemon.engine = engine

    def step(self) -> None:
        """One step of the loop, guarded as on its thread."""
        loop = self.daemon.loop
        loop._guard.run(lambda: loop._drain(0.0))
        if loop.busy:
            loop._guard.run(loop._step)

    def account(self) -> None:
        """Hold each answer that ended to the twin; a cancelled one too, as far as it goes."""
        for entry in [e for e in self.open if e[2].is_over]:
            self.open.remove(entry)
            number, job, told = entry
            if told.error is not None:
                self.failed.append(str(told.error))
            elif job.started:
                self.daemon.check_answer(job)
                self.paths[number] = job.route.path.then(job.generated[: max(0, len(job.generated) - 1)])

    def run(self, acts: int) -> None:
        """Work, and let all requests end."""
        for _ in range(acts):
            self.act()
        self.drain()

    def drain(self) -> None:
        """Let every request end."""
        for _ in range(5_000):
            if not self.open and not self.daemon.loop.busy:
                return
            self.step()
            self.daemon.mover.run_pending()
            self.account()
        raise AssertionError(f"{len(self.open)} requests never end")

    def heal(self) -> None:
        """Let the engine be well again; every session must go on then, and nothing be left of what failed."""
        self.faults.fail_at = None
        failed = list(self.failed)
        if self.daemon.loop.engine is None:
            self.load()
        for number, path in enumerate(self.paths):
            job, told = self.daemon.submit(path.then([1, 2]), max_tokens=3, session=f"s{number}")
            self.open.append((number, job, told))
        self.drain()
        assert self.failed == failed, self.failed[-1]
        self.daemon.check_at_rest()
        self.daemon.empty_engine()
        self.daemon.check_at_rest()
        self.daemon.close()


def fail_and_check(
    folder: FilePath | None, fail_at: int | None, *, stays_broken: bool = False, is_bug: bool = False, acts: int = 120
) -> tuple[Faults, list[str]]:
    """Run a busy daemon whose engine fails at one call; return what was failed, and the errors that requests ended by."""
    faults = Faults(None, stays_broken, is_bug)
    with small_blocks(), mock.patch("akashic_daemon.schedule.loop._COMPACTED_BYTES", 1 << 40):
        busy = Busy(folder, faults)
        faults.fail_at, faults.total = fail_at, 0
        busy.run(acts)
        busy.heal()
    return faults, busy.failed
