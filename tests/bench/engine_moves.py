"""KV that leaves the engine for RAM, or comes back, beside a running stream: the part of `move_p99.py` inside of a daemon.

Over HTTP each move would come with a prompt to compute, and a stream would show that instead. So the service runs in this
process, and two idle sessions, one to copy out and one to bring back, are moved again and again by the daemon's own
exporter and promoter, in the slices that they take beside streams. Parking and closing holes are off: they would move
these sessions too, and the stream attends to as many cells in every round.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TypeVar
from unittest import mock

from akashic_cli.bench.synthetic import make_run
from akashic_daemon.cache.index import RadixIndex
from akashic_daemon.config import load
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.paths import find_paths
from akashic_daemon.schedule.events import GenerationInput, TextDelta
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.schedule.tiering import Tiering
from akashic_daemon.service import Service
from akashic_daemon.tiers.block import Block
from akashic_daemon.tiers.costs import Costs
from akashic_daemon.tiers.exporter import Exporter
from akashic_daemon.tiers.jobs import Priority
from akashic_daemon.tiers.mover import Mover
from akashic_daemon.tiers.promotion import Promotion
from akashic_daemon.trajectory.message import Message, Role
from bench.move_figures import Figures

OUT, BACK = "out", "back"
KINDS = ("export", "import", "both")
STREAM_TOKENS = 6000
T = TypeVar("T")


class Carrier:
    """Moves the two sessions while it is told to. Its `step` runs on the engine thread, after that of the tiers."""

    def __init__(self, tiering: Tiering, index: RadixIndex, mover: Mover, out: array[int], back: array[int]) -> None:
        self._tiering, self._index, self._mover = tiering, index, mover
        self._out, self._back = out, back
        assert tiering.exporter is not None
        self._exporter: Exporter = tiering.exporter
        self._blocks = [piece.block for piece in tiering.pieces(out)]
        self._cleared = 0
        self._promotion: Promotion | None = None
        self.kind = ""
        self.problem = ""

    @property
    def moved_bytes(self) -> int:
        """Bytes that went either way since the start."""
        return self._mover.moves.demoted_bytes + self._mover.moves.promoted_ram_bytes

    def step(self) -> None:
        """Have something to move, and bring back for a slice."""
        if self.kind in ("export", "both"):
            self._export()
        if self.kind in ("import", "both") or self._promotion is not None:
            self._import()

    def _export(self) -> None:
        """Queue all blocks once those of the last time have arrived; the exporter takes them in its own slices."""
        if any(block.is_moving for block in self._blocks):
            return
        if self._cleared:
            self._cleared = 0
            for block in self._blocks:
                self._exporter._push(block, self._out, "out")
            return
        for block in self._blocks:
            block.is_moving = True  # else a block without a copy would leave the catalogue
        self._mover.submit(Priority.STORE, self._clear)

    def _clear(self) -> None:
        for block in self._blocks:
            self._free(block)
            block.is_moving = False
        self._cleared = 1

    def _free(self, block: Block) -> None:
        slots = self._mover.catalogue.take_slots(block) if self._mover.catalogue is not None else None
        if slots is not None:
            self._mover.arena.free(slots)

    def _import(self) -> None:
        if self._promotion is not None:
            if self._tiering.advance(self._promotion, is_streaming=True):
                self.problem = self.problem or ("blocks didn't arrive" if self._promotion.missing else "")
                self._tiering.end_promotion(self._promotion)
                self._promotion = None
            return
        stays = self._index.match(self._out).node
        for sequence, node in self._index.idle():
            if node is not stays:
                self._index.park(sequence)
        self._promotion = self._tiering.promote(self._back, self._tiering.outlook(self._back))
        if self._promotion is None:
            self.problem = "the tiers have nothing of what was parked"


@asynccontextmanager
async def serving(model: str | None, session_tokens: int) -> AsyncIterator[tuple[Service, Carrier]]:
    """Run a service that has computed both sessions, and has them in the engine and in RAM."""
    flags: dict[str, object] = {
        "cache.kv_tokens": 2 * session_tokens + STREAM_TOKENS + 4000, "cache.ssd_bytes": 0, "cache.ram_bytes": "1GB",
    }  # fmt: skip
    if model is not None:
        flags["model.default"] = model
    with tempfile.TemporaryDirectory(prefix="akm") as home:
        paths = find_paths({"AKASHIC_HOME": home})
        paths.store_dir.mkdir(parents=True, mode=0o700)
        service = Service(load(Path(home) / "config.toml", env={}, flags=flags), paths)
        await service.start()
        try:
            for number, session in enumerate((OUT, BACK)):
                await compute(service, session, number, session_tokens)
            yield service, await on_engine(service, lambda: carrier_of(service))
        finally:
            await service.stop()


async def compute(service: Service, session: str, number: int, tokens: int) -> None:
    """Compute a session's prompt, and wait until it is in RAM."""
    made = make_run(number, tokens, 1).messages[:2]
    messages = tuple(Message(Role(m["role"]), str(m["content"])) for m in made)
    request = GenerationInput(messages=messages, session=session, max_tokens=2, sampling=SamplingParams(temperature=0))
    async with aclosing(service.generate(request)) as events:
        async for _ in events:
            pass
    loop = service._loop
    while await on_engine(service, lambda: loop.tiering.exporter is not None and loop.tiering.exporter.waiting):
        await asyncio.sleep(0.01)
    await asyncio.to_thread(lambda: service.tiers.mover.call(lambda: None, priority=Priority.LAST))


async def on_engine(service: Service, work: Callable[[], T]) -> T:
    """Do something on the engine thread."""
    return await service._host.on_engine_thread(work)


def carrier_of(service: Service) -> Carrier:
    """Return what moves the sessions, hooked in behind each step's work of the tiers."""
    loop, index = service._loop, service._loop.index
    assert index is not None
    keys = []
    for session in (OUT, BACK):
        known = service.upkeep._known(session)
        assert known is not None
        keys.append(index.ops.key(known.trace.path))
    carrier = Carrier(loop.tiering, index, service.tiers.mover, *keys)
    between_steps = loop.tiering.between_steps

    def and_carry(step_s: float, *, is_streaming: bool, is_crowded: bool) -> None:
        between_steps(step_s, is_streaming=is_streaming, is_crowded=is_crowded)
        carrier.step()

    loop.tiering.between_steps = and_carry  # type: ignore[method-assign]
    return carrier


async def one_round(
    service: Service, carrier: Carrier, figures: Figures, kind: str, move_bytes: int, tokens: int
) -> int:
    """Stream until so much moved, or so many tokens came; return how many did."""
    never = ((0, -100.0), (2, -100.0))
    request = GenerationInput(
        text="Tell me a long story about a lighthouse, a storm and a lost dog.", max_tokens=STREAM_TOKENS,
        sampling=SamplingParams(temperature=0, logit_bias=never),
    )  # fmt: skip
    came_at_s: list[float] = []
    before = carrier.moved_bytes
    async with aclosing(service.generate(request)) as events:
        async for event in events:
            if not isinstance(event, TextDelta):
                continue
            came_at_s.append(time.perf_counter())
            carrier.kind = kind
            moved = carrier.moved_bytes - before
            if carrier.problem:
                raise SystemExit(f"moving KV beside a stream: {carrier.problem}")
            if (kind and moved >= move_bytes) or (not kind and len(came_at_s) > tokens):
                break
    carrier.kind = ""
    gaps_s = [after - earlier for earlier, after in pairwise(came_at_s)]
    figures.gaps_s += gaps_s
    if kind:
        figures.moved_bytes += carrier.moved_bytes - before
        figures.moving_s += sum(gaps_s)
    return len(gaps_s)


async def measure_kinds(model: str | None, session_tokens: int, move_bytes: int, rounds: int) -> dict[str, object]:
    """Measure each kind of move, each round beside one in which nothing moves."""
    out: dict[str, object] = {}
    with (
        mock.patch.object(Costs, "reload_pays", return_value=True),
        mock.patch.object(Tiering, "park", return_value=0),
        mock.patch.object(StepLoop, "_close_holes", return_value=None),
    ):
        async with serving(model, session_tokens) as (service, carrier):
            await one_round(service, carrier, Figures(), "", 0, 20)
            for kind in KINDS:
                idle, moving = Figures(), Figures()
                for _ in range(rounds):
                    came = await one_round(service, carrier, moving, kind, move_bytes // rounds, 0)
                    await one_round(service, carrier, idle, "", 0, came)
                ratio = round(moving.p99_s / idle.p99_s, 3)
                out[kind] = {"idle": idle.told(), "moving": moving.told(), "p99_over_idle": ratio}
    return out
