"""Timing on a GPU: graph replays with a flushed L2, medians; and the ceilings that figures are held against."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

DEVICE = "cuda"
_FLUSH_BYTES = 256 << 20


class Timer:
    """Times one piece of work as replays of its CUDA graph; between two, other data takes the whole L2.

    With `dirty`, that data was just written (a plain `zero_`, as triton's do_bench does): the work then also pays for
    writing it back. Without, it was read, and the L2 is merely cold.
    """

    def __init__(self, dirty: bool = False) -> None:
        self._leave_dirty = dirty
        self._dirty = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=DEVICE)
        self._clean = torch.zeros(_FLUSH_BYTES // 4, dtype=torch.float32, device=DEVICE)

    def flush(self) -> None:
        """Take the L2."""
        self._dirty.zero_()
        if not self._leave_dirty:
            self._clean.sum()

    def microseconds(self, work: Callable[[], object], repeats: int = 40) -> float:
        """Give the median time of one replay."""
        return self.spread(work, repeats)[1]

    def spread(self, work: Callable[[], object], repeats: int = 40) -> tuple[float, float, float]:
        """Give the least, the median and the 90th percentile."""
        graph = captured(work)
        times = []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.flush()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
        times.sort()
        return times[0], times[len(times) // 2], times[len(times) * 9 // 10]


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Warm `work` up on a side stream and capture it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def copy_terabytes_per_second(timer: Timer, size_bytes: int = 1 << 30) -> float:
    """Give the rate of a device-to-device copy, bytes read plus bytes written.

    A kernel copies: in a graph `copy_` becomes a copy node, which gets only two thirds of its rate.
    """
    source = torch.empty(size_bytes // 4, dtype=torch.int32, device=DEVICE).random_()
    target = torch.empty_like(source)
    return 2 * size_bytes / timer.microseconds(lambda: torch.neg(source, out=target), 20) / 1e6


def relative_error(got: torch.Tensor, truth: torch.Tensor) -> float:
    """Give |got - truth| / |truth|, both as float64."""
    return float((got.double() - truth).norm() / truth.norm())


def report(name: str, figures: dict[str, Any]) -> None:
    """Print one line of figures, and keep it in $OUT if that is set."""
    line = json.dumps({"name": name, **figures})
    print(line)
    sys.stdout.flush()
    out = os.environ.get("OUT")
    if out:
        with (Path(out) / "figures.jsonl").open("a") as file:
            file.write(line + "\n")


def machine() -> dict[str, Any]:
    """Say what the figures were measured on."""
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }
