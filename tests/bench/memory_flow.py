"""What remembering costs: turns a second without a model, and a chunk's reconciliation beside histories of 1x, 10x, 100x.

    python tests/bench/memory_flow.py [--turns 2000] [--times 1 10 100]

Turns are made up: words by Zipf's law, with names, numbers and what was said before. CPU seconds are of this process;
what else the machine does counts little in them. The words of
this made-up talk grow common, so it counts as sparse later on, and chunks grow to four gates at most: compare by tokens.
candidates: turns that the search for related chunks looks at closely; asked_chars: what a model would be asked.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from akashic_daemon.memory import candidates, ingest, reconcile, static_vectors
from akashic_daemon.memory.compactors import question
from akashic_daemon.memory.index import NamespaceIndex
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.memory.postings import Rows
from akashic_daemon.memory.scoring import Query
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock

_BATCH = 500
_WORDS = 20_000
_TOPICS = 200
_MEASURED_CHUNKS = 20


def turns(count: int, seed: int) -> Iterator[Said]:
    """Yield turns of two people whose words are of a topic that changes now and then."""
    draw = random.Random(seed)
    common = [f"w{n}" for n in range(1, 400)]
    for number in range(count):
        if number % 40 == 0:
            topic = draw.randrange(_TOPICS)
        own = [f"t{topic}x{int(draw.paretovariate(0.8)) % (_WORDS // _TOPICS)}" for _ in range(draw.randint(4, 14))]
        words = [*own, *draw.choices(common, k=draw.randint(5, 20))]
        draw.shuffle(words)
        text = " ".join(words) + (f" at {draw.randint(1, 999)} euros" if draw.random() < 0.2 else "")
        yield Said(("Ann", "Bob")[number % 2], text, f"m{number}", 1_600_000_000.0 + 60 * number)


def measure(memory: Memory, count: int, seed: int) -> dict[str, Any]:
    """Remember so many turns, then reconcile the last chunks of them."""
    batch: list[Said] = []
    wall_s, cpu_s = time.monotonic(), time.process_time()
    for said in turns(count, seed):
        batch.append(said)
        if len(batch) == _BATCH:
            ingest.remember(memory, "user", f"s{seed}", batch)
            batch.clear()
    if batch:
        ingest.remember(memory, "user", f"s{seed}", batch)
    wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
    waiting = memory.store.waiting_chunks(1_000_000)
    for chunk in waiting[:-_MEASURED_CHUNKS]:
        memory.store.reconciled(chunk.id, made_by="skipped")
    costs = [_reconciled(memory, chunk.id) for chunk in waiting[-_MEASURED_CHUNKS:]]
    return {
        "turns": memory.store.namespaces()["user"],
        "ingest_turns_per_s": round(count / wall_s),
        "ingest_turns_per_cpu_s": round(count / cpu_s),
        "chunks": len(memory.store.chunks_of("user")),
        "candidates": round(statistics.fmean(cost["candidates"] for cost in costs)),
        "related": round(statistics.fmean(cost["related"] for cost in costs), 2),
        "asked_chars": round(statistics.fmean(cost["asked_chars"] for cost in costs)),
        "chunk_tokens": round(statistics.fmean(cost["tokens"] for cost in costs)),
        "reconcile_cpu_ms": round(1000 * statistics.median(cost["cpu_s"] for cost in costs), 1),
        "reconcile_cpu_ms_per_1000_tokens": round(
            1_000_000 * statistics.median(cost["cpu_s"] / cost["tokens"] for cost in costs), 1
        ),
        "reconcile_wall_ms": round(1000 * statistics.median(cost["wall_s"] for cost in costs), 1),
    }


def _reconciled(memory: Memory, chunk_id: int) -> dict[str, float]:
    looked_at: list[int] = []

    def find(index: NamespaceIndex, query: Query, count: int) -> Rows:
        rows = found(index, query, count)
        looked_at.append(len(rows))
        return rows

    found = candidates.find
    candidates.find = find
    try:
        wall_s, cpu_s = time.monotonic(), time.process_time()
        task = reconcile.prepare(memory, chunk_id)
        reconcile.store(memory, task, task.extractive)
    finally:
        candidates.find = found
    return {
        "candidates": sum(looked_at),
        "wall_s": time.monotonic() - wall_s,
        "cpu_s": time.process_time() - cpu_s,
        "tokens": task.chunk.length_tokens,
        "related": len(task.related),
        "asked_chars": len(question(task)),
    }


def main() -> None:
    """Print a line of JSON for each size of history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100])
    options = parser.parse_args()
    embedder = static_vectors.load()
    with tempfile.TemporaryDirectory() as folder:
        store = open_memory_store(Path(folder) / "memory.sqlite", SystemClock())
        memory = Memory(store, embedder)
        have = 0
        for number, times in enumerate(sorted(options.times)):
            found = measure(memory, options.turns * times - have, number)
            have = options.turns * times
            print(json.dumps({"times": times, **found}), flush=True)
        store.close()


if __name__ == "__main__":
    main()
