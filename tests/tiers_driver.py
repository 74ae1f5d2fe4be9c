"""A step loop with all tiers on the fake engine, in one thread: the mover runs when the test says so, so a seed is a run.

Requests are bare paths. Every answer is held to the naive twin, and after each step the index to what the engine holds,
so wrong reuse, a leaked buffer, pin or cell, and a block of another path all show.
"""

from __future__ import annotations

import queue
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from unittest import mock

from akashic_daemon.config import ScheduleSection
from akashic_daemon.engine.base import BatchItem, Capabilities, PackedRun, SamplingParams
from akashic_daemon.engine.fake import END, FakeCells, FakeEngine, contents
from akashic_daemon.errors import AkashicError, EngineError
from akashic_daemon.program.path import Path
from akashic_daemon.program.route import Route
from akashic_daemon.protocol.native import Reuse
from akashic_daemon.schedule.counters import Counters
from akashic_daemon.schedule.events import Finished
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.schedule.request import Request
from akashic_daemon.schedule.tiering import TierSettings
from akashic_daemon.store.blocks.files import FileOps
from akashic_daemon.tiers.costs import Costs
from akashic_daemon.tiers.jobs import Priority
from akashic_daemon.tiers.mover import Mover
from akashic_daemon.tiers.ssd import SsdTier, open_ssd
from akashic_daemon.tiers.staging import Staging
from akashic_daemon.types import Clock, RequestId, SequenceId
from block_stores import FakeClock
from watched_service import check_holdings

_TIMED = (
    "schedule.loop", "schedule.running", "schedule.tiering", "schedule.admission", "tiers.exporter", "tiers.promotion", "tiers.mover",
)  # fmt: skip
BLOCK = 8
"""Tokens of a block here, so that short paths have many."""


class SteppedTime:
    """A tenth of a millisecond passes at each look at the clock, so that slices are the same on every machine."""

    def __init__(self) -> None:
        self._now_s = 1000.0

    def monotonic(self) -> float:
        """Return the time."""
        self._now_s += 1e-4
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds


@contextmanager
def small_blocks(staging: int = 512, *, is_stepped: bool = True) -> Iterator[None]:
    """Let blocks be of 8 tokens, and staging have so many buffers: an inline mover can't wait for one.

    is_stepped: time passes as `SteppedTime` says. Everything that is computed is worth writing and reloading.
    """
    daemon = "akashic_daemon"
    with ExitStack() as stack:
        for module in ("tiers.block", "tiers.exporter", "schedule.tiering", "schedule.running"):
            stack.enter_context(mock.patch(f"{daemon}.{module}.BLOCK_TOKENS", BLOCK))
        clock = SteppedTime()
        for module in _TIMED if is_stepped else ():
            stack.enter_context(mock.patch(f"{daemon}.{module}.time", clock))
        stack.enter_context(mock.patch(f"{daemon}.tiers.exporter.Exporter._is_worth_disk", return_value=True))
        stack.enter_context(mock.patch(f"{daemon}.schedule.tiering._IDLE_SLICE_S", 0.001))
        stack.enter_context(mock.patch(f"{daemon}.schedule.tiering._OPEN_TOKENS", BLOCK))
        stack.enter_context(mock.patch(f"{daemon}.schedule.tiering._SLOT_TOKENS", 2))
        stack.enter_context(mock.patch(f"{daemon}.tiers.exporter._FEWEST_TAIL_TOKENS", 2))
        stack.enter_context(mock.patch(f"{daemon}.schedule.loop._RELOAD_PAUSE_S", 0.0))
        stack.enter_context(
            mock.patch(f"{daemon}.schedule.tiering.Staging", lambda _count, size: Staging(staging, size))
        )
        yield


class InlineMover(Mover):
    """Does its jobs on the caller's thread, when it is told; a bug in one fails the test."""

    def start(self) -> None:
        """Open the SSD tier."""
        self._begin()

    def _guarded(self, work: Callable[[], object]) -> None:
        work()

    def run_pending(self, most: int | None = None) -> int:
        """Do what waits, the most urgent first, at most so much; return how much was done."""
        done = 0
        while most is None or done < most:
            try:
                _, _, work = self._jobs.get_nowait()
            except queue.Empty:
                break
            assert work is not None
            work()
            done += 1
        return done

    def call(
        self, work: Callable[[], object], timeout_s: float | None = None, *, priority: Priority = Priority.CALL
    ) -> object:
        """Do `work` after everything that waits."""
        self.run_pending()
        return work()

    def stop(self, _timeout_s: float) -> bool:
        """Write what waits and close the store."""
        self.run_pending()
        while self._to_write:
            self._write_batch()
        if self._ssd is not None:
            self._ssd.close()
        return True


class SettledCosts(Costs):
    """Measures nothing: whether a reload pays is the test's choice, so that no run depends on the machine's speed."""

    pays: Callable[[], bool] = staticmethod(lambda: True)

    def _observe(self, kind: str, amount: float, seconds: float) -> None:
        pass

    def reload_pays(self, _tokens: int, _ram_bytes: int, _ssd_bytes: int) -> bool:
        """Say what the test chose."""
        return self.pays()


class Breakable(FakeEngine):
    """Fails the calls for which `fails` says so; `hole_s` is what its idle cells cost running ones."""

    def __init__(self, *, hole_s: float = 0.0, **options: int | str) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.fails: Callable[[str], bool] = lambda _call: False
        self._hole_s = hole_s

    @property
    def capabilities(self) -> Capabilities:
        """The fake's, with what holes cost."""
        return replace(super().capabilities, hole_s=self._hole_s)

    def _maybe_fail(self, call: str) -> None:
        if self.fails(call):
            raise EngineError(f"{call} was told to fail")

    def decode(self, batch: Sequence[BatchItem]) -> None:
        """Compute, or fail."""
        self._maybe_fail("decode")
        super().decode(batch)

    def save(self, sequence: SequenceId, ranges: Sequence[tuple[int, int]]) -> FakeCells:
        """Copy out, or fail."""
        self._maybe_fail("save")
        return super().save(sequence, ranges)

    def export_cells(self, sequence: SequenceId, start: int, end: int, into: memoryview, storage: str) -> int:
        """Export, or fail."""
        self._maybe_fail("export")
        return super().export_cells(sequence, start, end, into, storage)

    def import_runs(self, runs: Sequence[PackedRun], sequence: SequenceId) -> None:
        """Import, or fail."""
        self._maybe_fail("import")
        super().import_runs(runs, sequence)


@dataclass(slots=True)
class Told:
    """What a request was told, in order."""

    events: list[object] = field(default_factory=list)

    @property
    def finished(self) -> Finished | None:
        """The last event of a request that ended well."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Finished) else None

    @property
    def error(self) -> AkashicError | None:
        """Why it ended badly."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, AkashicError) else None

    @property
    def is_over(self) -> bool:
        """Whether it ended."""
        return self.finished is not None or self.error is not None


@dataclass(slots=True)
class Tiers:
    """Where and how large the tiers are. `staging`: buffers of each pool."""

    folder: FilePath | None = None
    ram_bytes: int = 1 << 20
    ssd_bytes: int = 16 << 20
    daily_bytes: int = 1 << 40
    clock: Clock = field(default_factory=FakeClock)
    files: FileOps | None = None

    def open_ssd(self) -> SsdTier:
        """Open the SSD tier."""
        assert self.folder is not None
        return open_ssd(self.folder, self.ssd_bytes, self.daily_bytes, self.clock, self.files)


class Daemon:
    """A step loop, its tiers and its requests; use it inside `small_blocks`."""

    def __init__(self, tiers: Tiers, engine: Breakable, schedule: ScheduleSection | None = None) -> None:
        self.tiers, self.engine = tiers, engine
        self.costs = SettledCosts(None, "fake")
        self.mover = InlineMover(tiers.open_ssd if tiers.folder is not None else None)
        self.counters = Counters()
        self.loop = StepLoop(
            schedule or ScheduleSection(),
            self.counters,
            tiers=TierSettings(lambda _engine: tiers.ram_bytes, "as_computed", lambda _fingerprint: self.costs),
            mover=self.mover,
        )
        self.mover.start()
        self.loop.set_engine(lambda: engine)
        self.jobs: list[tuple[Request, Told]] = []
        self._number = 0

    # -- requests ----------------------------------------------------------------------------------------------

    def submit(self, path: Path, *, max_tokens: int = 1, session: str | None = None) -> tuple[Request, Told]:
        """Queue a request for a path."""
        self._number += 1
        told = Told()
        owners = array("i", [i // 11 for i in range(len(path.tokens))])
        route = Route.of("program", path, owners)
        job = Request(
            id=RequestId(f"r{self._number}"), session=session, routes=(route,), prompt_tokens=len(path.tokens),
            window_tokens=1 << 20, params=SamplingParams(), budget_tokens=max_tokens, stop=(),
            emit=told.events.append, explain=lambda *_: None, reuse=Reuse(), created_s=float(self._number), model="fake",
        )  # fmt: skip
        self.jobs.append((job, told))
        self.loop.submit(job)
        self.loop._drain(0.0)
        return job, told

    def ask(self, path: Path, *, max_tokens: int = 1, session: str | None = None) -> Request:
        """Run a request to its end, with the mover keeping up, and hold it to the twin."""
        job, told = self.submit(path, max_tokens=max_tokens, session=session)
        for _ in range(100_000):
            if told.is_over:
                break
            self.step()
            self.mover.run_pending()
        assert told.finished is not None, told.events[-1:]
        self.check_answer(job)
        return job

    def cancel(self, job: Request) -> None:
        """Cancel a request, as its client's leaving does."""
        self.loop.cancel(job.id)
        self.loop._drain(0.0)

    def step(self) -> None:
        """One step of the loop, if there is anything to do; a bug in it fails the test."""
        self.loop._drain(0.0)
        if self.loop.busy:
            self.loop._step()

    def check_answer(self, job: Request) -> None:
        """Assert that each token is what the twin says."""
        path = job.route.path.then(job.generated)
        expected = contents(path)[len(job.route.path.tokens) - 1 :]
        every = self.engine._end_every
        said = [END if c % every == 0 else 97 + c % 26 for c in expected[: len(job.generated)]]
        assert job.generated == said, f"{job.id} says what the twin doesn't"

    # -- moving ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let everything that waits be copied out and written."""
        exporter = self.loop.tiering._exporter
        while (exporter is not None and exporter.waiting) or not self.mover._jobs.empty() or self.mover._to_write:
            if exporter is not None:
                exporter.export(1.0)
            self.mover.run_pending()
            if self.mover._to_write and self.mover._jobs.empty():
                self.mover._write_batch()

    def empty_engine(self) -> None:
        """Evict everything from the engine that doesn't run."""
        self.settle()
        index = self.loop.index
        assert index is not None
        index.make_room(index.cells_total)

    def empty_ram(self, keep: Callable[[], bool] = lambda: False, *, stored_only: bool = True) -> None:
        """Drop RAM copies, those that the disk has only unless told otherwise."""
        catalogue = self.mover.catalogue
        assert catalogue is not None
        for block in catalogue.blocks():
            is_free = block.slots is not None and block not in self.mover._queued
            if is_free and (block.on_ssd or not stored_only) and not keep():
                self.mover.drop_from_ram(block)

    def lose(self, chance: random.Random, share: float) -> int:
        """Lose blocks on disk, without anybody being told; return how many."""
        ssd = self.mover.ssd
        if ssd is None:
            return 0
        keys = [s.key for s in ssd.labels("fake") if s.size_bytes and chance.random() < share]
        ssd._store.delete(keys)
        return len(keys)

    # -- what must hold ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that the index is sound, holds what it says, and that memory is accounted for."""
        index = self.loop.index
        assert index is not None
        index.check()
        check_holdings(index, self.engine)
        assert self.mover.arena.used_bytes <= self.tiers.ram_bytes

    def check_at_rest(self) -> None:
        """Assert that nothing is running, moving, pinned or taken once everything has ended."""
        assert not self.loop.busy
        self.loop.tiering._end_warming()
        self.settle()
        self.check()
        index, catalogue, mover = self.loop.index, self.mover.catalogue, self.mover
        assert index is not None
        assert catalogue is not None
        assert not index.running
        assert index.scratches == 0
        for pool in (mover.outgoing, mover.incoming):
            assert pool is not None
            assert pool.free_count == pool.count, "a buffer was lost"
        blocks = catalogue.blocks()
        assert not [b for b in blocks if b.pins], "a pin was left"
        assert not [b for b in blocks if b.is_moving], "a block moves for ever"
        assert not mover._queued
        assert mover.arena.payloads == sum(b.slots is not None for b in blocks), "RAM that no block has"
        idle = [b for b in blocks if not (b.children or b.has_copy or b.is_labelled)]
        assert not idle, f"{len(idle)} blocks of no use are remembered"

    def close(self) -> None:
        """Stop: copy out what waits, close the store."""
        self.loop.set_engine(None)
        self.mover.stop(0.0)
