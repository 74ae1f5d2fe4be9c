"""How fast KV leaves and enters llama.cpp's cache, a block at a time, on one thread.

    python tests/bench/kv_bytes.py [--cells 32768] [--tokens 128 20] [--storage as_computed q8] [--blocks 24]

An empty cache, and one of which three quarters are in use, in pieces of 1 to 200 cells with holes between. Rates are of KV
as computed, best and median of the blocks; nothing is computed meanwhile. The content of a block doesn't matter, so one
block is computed and the others are copies of it.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from dataclasses import dataclass

from akashic_daemon.engine.base import AS_COMPUTED, STORAGES, BatchItem
from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions, embedded_model_path
from akashic_daemon.types import SequenceId

SOURCE, TARGET, FILLER = SequenceId(0), SequenceId(1), SequenceId(2)


@dataclass(frozen=True, slots=True)
class Rates:
    """GB/s of each block."""

    out: list[float]
    back: list[float]

    def __str__(self) -> str:
        return "  ".join(f"{statistics.median(r):6.2f} ({max(r):5.2f})" for r in (self.out, self.back))


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


def measured(engine: LlamaCppEngine, tokens: int, storage: str, blocks: int) -> Rates:
    """Import a block at `blocks` places of one sequence, then export them from there."""
    as_computed = engine.export_bytes(tokens, AS_COMPUTED)
    block = memoryview(bytearray(engine.export_bytes(tokens, storage)))
    block = block[: engine.export_cells(SOURCE, 0, tokens, block, storage)]
    out, back = [], []
    for number in range(blocks):
        start = number * tokens
        into = memoryview(bytearray(len(block)))
        # Each block stands where it is imported: the head says so, K stays as it is.
        moved = memoryview(bytearray(block))
        engine.import_cells(block, TARGET, start, start + tokens)
        engine.export_cells(TARGET, start, start + tokens, moved, storage)
        engine.release(TARGET, start, start + tokens)
        began_s = time.perf_counter()
        engine.import_cells(moved, TARGET, start, start + tokens)
        between_s = time.perf_counter()
        engine.export_cells(TARGET, start, start + tokens, into, storage)
        ended_s = time.perf_counter()
        back.append(as_computed / (between_s - began_s) / 1e9)
        out.append(as_computed / (ended_s - between_s) / 1e9)
    engine.release(TARGET)
    return Rates(out, back)


def main() -> None:
    """Print a line for each cache, block size and storage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=32768)
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 20])
    parser.add_argument("--storage", nargs="+", default=list(STORAGES), choices=STORAGES)
    parser.add_argument("--blocks", type=int, default=24)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.2f}; GB/s of KV as computed: median (best) of {options.blocks} blocks")
    print(f"{'flash':6} {'cache':11} {'tokens':>6}  {'storage':12} {'export':>15} {'import':>15}")
    for flash in ("off", "on"):
        engine = opened(options.cells, flash)
        longest = max(options.tokens)
        engine.decode([BatchItem(SOURCE, [100 + n % 900 for n in range(longest)], 0, logits=False)])
        for cache in ("empty", "fragmented"):
            if cache == "fragmented":
                fragment(engine, options.cells, longest)
            for tokens in options.tokens:
                for storage in options.storage:
                    rates = measured(engine, tokens, storage, options.blocks)
                    print(f"{flash:6} {cache:11} {tokens:6}  {storage:12} {rates}")
        engine.close()


if __name__ == "__main__":
    main()
