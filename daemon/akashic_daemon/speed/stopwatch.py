"""Times of torch's work, on a GPU as replays of a CUDA graph with a cold L2, on a CPU by the clock; and copy's speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

_FLUSH_BYTES = 256 << 20
_REPEATS, _REPEATS_CPU = 15, 5


class Stopwatch:
    """Times work on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self._flush = torch.zeros(_FLUSH_BYTES if self.on_gpu else 0, dtype=torch.uint8, device=device)

    def seconds(self, work: Callable[[], object], *, graph: bool = True) -> float:
        """Return the median seconds of a call; the first one, which may compile, doesn't count."""
        work()
        if not self.on_gpu:
            return median(_clocked(work) for _ in range(_REPEATS_CPU))
        call = self._recorded(work) if graph else work
        times: list[float] = []
        for _ in range(_REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "se")  # type: ignore[no-untyped-call]
            self._flush.zero_()
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(float(begin.elapsed_time(end)) / 1e3)
        return median(times)

    def _recorded(self, work: Callable[[], object]) -> Callable[[], object]:
        aside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            work()
        torch.cuda.current_stream(self.device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def copy_bytes_per_s(self) -> float:
        """Return the rate of a large copy on the device, bytes read and bytes written."""
        source = torch.empty(
            (1 << 30 if self.on_gpu else 1 << 28) // 4, dtype=torch.int32, device=self.device
        ).random_()
        target = torch.empty_like(source)
        # A kernel copies: in a graph `copy_` becomes a copy node, which gets two thirds of its rate.
        return 2 * source.nbytes / self.seconds(lambda: torch.neg(source, out=target))


def _clocked(work: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s
