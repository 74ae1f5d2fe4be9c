"""Decode steps as CUDA graphs: one a batch size, replayed with new tables, so that no kernel waits for the host.

Where layers stand on several devices, each has a graph of its own, and the rows are copied from each to the next. A graph
reads its tokens, slots, positions and views from one buffer, which one copy fills, and ends by writing each row's likeliest
token where the host reads it. Rows that pad a batch write nowhere and see nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from akashic_daemon.engine.torch_engine.attention import DecodePlan, PagedAttention
from akashic_daemon.engine.torch_engine.forward import Model, computing_on
from akashic_daemon.engine.torch_engine.last_logits import Best
from akashic_daemon.engine.torch_engine.split import SplitAttention
from akashic_daemon.engine.torch_engine.step import Step
from akashic_daemon.engine.torch_engine.views import Longs
from akashic_kernels.row_best import make_row_best, row_best

Ints = npt.NDArray[np.int32]
BATCHES = (1, 2, 4, 8, 16, 32, 64)
_MOST_VIEWS = 32768
_LEAST_VIEWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """int32: tokens [n], slots [n], pages [n], positions [n], view_start [n + 1], a gap up to 16 bytes, views [most, 4]."""

    host: torch.Tensor
    device: torch.Tensor
    written: tuple[Ints, ...]
    """The parts of `host` as arrays."""

    @classmethod
    def make(cls, batch: int, views: int, device: torch.device) -> _Tables:
        host = torch.zeros(_views_at(batch) + 4 * views, dtype=torch.int32, pin_memory=True)
        return cls(host, torch.zeros_like(host, device=device), tuple(p.numpy() for p in _parts(host, batch)))

    def fill(self, step: Step | None, cells: Longs, page_tokens: int) -> None:
        """Write a step's tables (None: of no row at all) and send them to the device; its KV goes to `cells`."""
        tokens, slots, pages, positions, view_start, views = self.written
        tokens[:], slots[:], pages[:], positions[:], view_start[:] = 0, -1, 0, 0, 0
        total = 0
        if step is not None:
            count = len(step.segments)
            tokens[:count], slots[:count], pages[:count] = step.tokens, cells, step.cells // page_tokens
            positions[:count] = [s.start for s in step.segments]
            for row, segment in enumerate(step.segments):
                views[total : total + len(segment.views)] = segment.views
                total += len(segment.views)
                view_start[row + 1] = total
            view_start[count + 1 :] = total
        used = _views_at(len(tokens)) + 4 * total
        self.device[:used].copy_(self.host[:used], non_blocking=True)


def _views_at(batch: int) -> int:
    return -(-(5 * batch + 1) // 4) * 4


def _parts(of: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
    """Return tokens, slots, pages, positions, view_start and views as views of a buffer for `n` rows."""
    rows = (of[part * n : (part + 1) * n] for part in range(4))
    return *rows, of[4 * n : 5 * n + 1], of[_views_at(n) :].view(-1, 4)


class Recorder:
    """Records what one device computes, always on one stream and with one pool of memory.

    So all graphs take the memory of the largest: they run one after another, and what one leaves is read before the next runs.
    (torch gives memory of a pool to the stream only that had it before; its own stream for recording is the first device's
    for ever.)
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """Return a graph of what `compute` launches, and where that leaves its result; torch must stand on the device."""
        # Kernels are compiled, and libraries take their memory, before anything is recorded.
        self._aside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._aside):
            compute()
        torch.cuda.current_stream(self._device).wait_stream(self._aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._aside):
            made = compute()
        return graph, made


class DecodeGraphs:
    """Graphs of one model over one pool; each is made when its batch size is first met.

    Choosing among views costs by how many there may be, so sparse ones are made anew where views double.
    """

    def __init__(self, model: Model, attention: PagedAttention | SplitAttention, vocabulary_size: int) -> None:
        self._model = model
        self._attention = attention
        self._parts = attention.parts if isinstance(attention, SplitAttention) else [attention]
        self._vocabulary_size = vocabulary_size
        self._recorders = [Recorder(device) for device in model.devices]
        pages = self._parts[0].pool.shape.pages
        self._most_views = min(_MOST_VIEWS, max(_LEAST_VIEWS, 1 << (2 * pages - 1).bit_length()))
        self._graphs: dict[tuple[int, int], _Graph] = {}

    def serves(self, step: Step) -> bool:
        """Tell if a step is of single tokens, and not larger than graphs are made for."""
        views = sum(len(s.views) for s in step.segments)
        fits = len(step.segments) <= BATCHES[-1] and views <= self._most_views
        return all(part.records(step) for part in self._parts) and fits

    def run(self, step: Step) -> tuple[torch.Tensor, Best]:
        """Start a step and return its logits [items, vocabulary], valid until the next run, and a wait for the best."""
        cells = []
        for part in self._parts:
            with computing_on(part.pool.device):
                cells.append(part.slots(step))
        batch = next(size for size in BATCHES if size >= len(step.segments))
        made = (batch, self._room(step))
        if made not in self._graphs:
            self._graphs[made] = _Graph(
                self._model, self._attention, self._parts, self._recorders, *made, self._vocabulary_size
            )
        return self._graphs[made].run(step, cells, self._parts[0].pool.page_tokens)

    def _room(self, step: Step) -> int:
        if self._attention.sparse is None:
            return self._most_views
        views = sum(len(s.views) for s in step.segments)
        return min(self._most_views, max(_LEAST_VIEWS, 1 << (views - 1).bit_length()))


class _Graph:
    def __init__(
        self,
        model: Model,
        attention: PagedAttention | SplitAttention,
        parts: list[PagedAttention],
        recorders: list[Recorder],
        batch: int,
        views: int,
        vocabulary_size: int,
    ) -> None:
        self._devices = model.devices
        self._tables = [_Tables.make(batch, views, part.pool.device) for part in parts]
        self._best = make_row_best(batch, self._devices[-1], on_host=True)
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # Kept: a graph knows addresses only, and doesn't keep what was allocated before it was recorded.
        self._plans: list[DecodePlan] = []
        for part, tables in zip(parts, self._tables, strict=True):
            with computing_on(part.pool.device):
                tables.fill(None, np.empty(0, np.int64), 1)
                _, slots, pages, positions, view_start, listed = _parts(tables.device, batch)
                room = part.tables(batch, views)
                self._plans.append(DecodePlan(slots, pages, positions, listed, view_start, *room))
        plan = self._plans if isinstance(attention, SplitAttention) else self._plans[0]
        tokens = _parts(self._tables[0].device, batch)[0]
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._taken: list[torch.Tensor] = []
        """What each stage takes; the first one takes tokens."""
        self._made: list[torch.Tensor] = []
        """What each stage makes; the last one makes logits."""

        def compute(stage: int) -> torch.Tensor:
            x = self._taken[stage] if stage else model.embedded(tokens)
            x = model.through(stage, attention, plan, x)
            if stage < len(self._devices) - 1:
                return x
            # Rows beyond the vocabulary only make the matrix a round size.
            logits = model.head(x)[:, :vocabulary_size]
            row_best(logits, self._best)
            return logits

        for stage, (device, recorder) in enumerate(zip(self._devices, recorders, strict=True)):
            before = self._made[-1] if stage else tokens
            self._taken.append(torch.zeros_like(before, device=device) if stage else before)
            with computing_on(device):
                graph, made = recorder.record(partial(compute, stage))
            self._graphs.append(graph)
            self._made.append(made)
        with computing_on(self._devices[-1]):
            self._done.record()

    def run(self, step: Step, cells: list[Longs], page_tokens: int) -> tuple[torch.Tensor, Best]:
        self._done.synchronize()  # the step before this one reads the host's tables too
        for tables, slots in zip(self._tables, cells, strict=True):
            with computing_on(tables.device.device):
                tables.fill(step, slots, page_tokens)
        for stage, device in enumerate(self._devices):
            with computing_on(device):
                if stage:
                    self._taken[stage].copy_(self._made[stage - 1], non_blocking=True)
                self._graphs[stage].replay()
                if stage == len(self._devices) - 1:
                    self._done.record()
        count = len(step.segments)
        return self._made[-1][:count], partial(self._wait, count)

    def _wait(self, count: int) -> tuple[list[float], list[int]]:
        self._done.synchronize()
        return self._best.greatest[:count].tolist(), self._best.place[:count].tolist()
