"""How fast KV leaves and enters llama.cpp's cache, a block at a time, on one thread.

    python tests/bench/kv_bytes.py [--cells 32768] [--runs 128x1 20x1 20x12] [--storage as_computed q8] [--rounds 24]

An empty cache, and one of which three quarters are in use, in pieces of 1 to 200 cells with holes of 1 to 64 between. All
rates are of KV as computed; processor time tells what a machine would do that isn't busy with something else. Nothing is
computed meanwhile. The content of a run doesn't matter: one is computed, the others are copies of it.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

from akashic_daemon.engine.base import AS_COMPUTED, STORAGES, BatchItem, PackedRun
from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions, embedded_model_path
from akashic_daemon.types import SequenceId

SOURCE, TARGET, FILLER = SequenceId(0), SequenceId(1), SequenceId(2)
LONGEST = 128


class Watch:
    """GB/s by the wall and by this thread's processor time, of each piece of work."""

    def __init__(self) -> None:
        self._wall: list[float] = []
        self._processor: list[float] = []

    def time(self, size_bytes: int, work: Callable[[], object]) -> None:
        wall_s, processor_s = time.perf_counter(), time.thread_time()
        work()
        self._processor.append(size_bytes / (time.thread_time() - processor_s) / 1e9)
        self._wall.append(size_bytes / (time.perf_counter() - wall_s) / 1e9)

    def __str__(self) -> str:
        wall, processor = statistics.median(self._wall), statistics.median(self._processor)
        return f"{wall:6.2f} {processor:6.2f} {max(self._wall):6.2f}"


def opened(cells: int, flash_attention: str) -> LlamaCppEngine:
    path = embedded_model_path()
    assert path is not None
    return LlamaCppEngine(
        LlamaCppOptions(
            name="smollm2", path=path, window_tokens=8192, kv_tokens=cells, max_sequences=8, threads=1,
            flash_attention=flash_attention,
        )
    )  # fmt: skip


def fragment(engine: LlamaCppEngine, cells: int, tokens: int) -> None:
    """Fill the cache with copies of SOURCE's first `tokens` cells, then leave holes of 1 to 64 cells all over it."""
    dice = random.Random(5)
    buffer = memoryview(bytearray(engine.export_bytes(tokens, AS_COMPUTED)))
    engine.export_cells(SOURCE, 0, tokens, buffer, AS_COMPUTED)
    end = (cells - tokens) // tokens * tokens
    for start in range(0, end, tokens):
        engine.import_cells(buffer, FILLER, start, start + tokens)
    at = 0
    while at < end:
        hole = dice.randint(1, 64)
        engine.release(FILLER, at, min(end, at + hole))
        at += hole + dice.randint(1, 200)


def measured(engine: LlamaCppEngine, tokens: int, group: int, storage: str, rounds: int) -> tuple[Watch, Watch]:
    """Export runs of one sequence one by one, and import them anew, `group` at a time; the next round goes elsewhere."""
    out, back = Watch(), Watch()
    size_bytes = engine.export_bytes(tokens, AS_COMPUTED)
    first = memoryview(bytearray(size_bytes))
    engine.export_cells(SOURCE, 0, tokens, first, AS_COMPUTED)
    for number in range(rounds):
        starts = [(number * group + n) * tokens for n in range(group)]
        # K is turned once, here: what is measured stands where it was exported.
        engine.import_runs([PackedRun(first, start, start + tokens) for start in starts], TARGET)
        runs = []
        for start in starts:
            data = memoryview(bytearray(engine.export_bytes(tokens, storage)))
            out.time(size_bytes, partial(engine.export_cells, TARGET, start, start + tokens, data, storage))
            runs.append(PackedRun(data, start, start + tokens))
        engine.release(TARGET, starts[0], starts[-1] + tokens)
        back.time(size_bytes * group, partial(engine.import_runs, runs, TARGET))
    engine.release(TARGET)
    return out, back


def main() -> None:
    """Print a line for each cache, block size and storage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=32768)
    parser.add_argument(
        "--runs", nargs="+", default=["128x1", "20x1", "20x12"], help="tokens x how many come back at once"
    )
    parser.add_argument("--storage", nargs="+", default=list(STORAGES), choices=STORAGES)
    parser.add_argument("--flash", nargs="+", default=["off", "on"], choices=["off", "on"])
    parser.add_argument("--rounds", type=int, default=24)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.2f}; GB/s of KV as computed: median, median of processor time, best")
    print(f"{'flash':6}{'cache':11}{'runs':8}{'storage':13}{'export':^20}   {'import':^20}")
    for flash in options.flash:
        engine = opened(options.cells, flash)
        engine.decode([BatchItem(SOURCE, [100 + n % 900 for n in range(LONGEST)], 0, logits=False)])
        for cache in ("empty", "fragmented"):
            if cache == "fragmented":
                fragment(engine, options.cells, LONGEST)
            for runs in options.runs:
                tokens, group = (int(number) for number in runs.split("x"))
                for storage in options.storage:
                    out, back = measured(engine, tokens, group, storage, options.rounds)
                    print(f"{flash:6}{cache:11}{runs:8}{storage:13}{out}   {back}", flush=True)
        engine.close()


if __name__ == "__main__":
    main()
