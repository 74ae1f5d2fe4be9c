"""How quick memory is when it is large: `python tests/bench/memory_speed.py --turns 100000 FILE…` (LoCoMo's shape).

The turns of the files are said again and again, each time with a third of the words from other turns, and the files'
questions are asked. By default all goes through the store, as the daemon does it; --index-only makes the arrays alone, which
a million turns take a minute for. Prints one JSON object; search_cpu is what a search takes on a machine that does nothing else,
and holds on a loaded one too.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from akashic_daemon.memory import candidates, scoring, static_vectors, words
from akashic_daemon.memory.embedder import Embedder
from akashic_daemon.memory.evaluation import corpus
from akashic_daemon.memory.index import NamespaceIndex
from akashic_daemon.memory.ingest import remember
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.store.memory.rows import IndexRow
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock

_BATCH = 500
_SOURCE_TURNS = 22
_QUESTIONS = 300
_WORD = re.compile(r"\S+")


def said_again(said: Sequence[Said], count: int) -> Iterator[Said]:
    """Yield so many turns that are like those of the files."""
    dice = random.Random(1)
    pool = [word for one in said for word in _WORD.findall(one.text)]
    for number in range(count):
        one = said[number % len(said)]
        own = [dice.choice(pool) if dice.random() < 1 / 3 else word for word in _WORD.findall(one.text)]
        yield Said(one.speaker, f"{' '.join(own)} #{number:x}", str(number), one.event_at_s)


def through_store(said: Sequence[Said], questions: Sequence[str], count: int, embedder: Embedder) -> dict[str, Any]:
    """Take the turns in, in batches, and search."""
    with tempfile.TemporaryDirectory(prefix="akashic-speed-") as folder:
        store = open_memory_store(Path(folder) / "memory.sqlite", SystemClock())
        memory = Memory(store, embedder)
        turns = said_again(said, count)
        ingest_s = ingest_cpu_s = 0.0
        for first in range(0, count, _BATCH):
            batch = [turn for turn, _ in zip(turns, range(min(_BATCH, count - first)), strict=False)]
            started_s, started_cpu_s = time.perf_counter(), time.process_time()
            remember(memory, "user", f"s{first}", batch)
            ingest_s += time.perf_counter() - started_s
            ingest_cpu_s += time.process_time() - started_cpu_s
        times = _timed(questions, lambda question: memory.search(["user"], question, limit=20))
        size_bytes = memory.index("user").size_bytes
        store.close()
    return {
        "ingest_turns_per_s": round(count / ingest_s),
        "ingest_turns_per_cpu_s": round(count / ingest_cpu_s),
        "index_bytes_per_turn": round(size_bytes / count),
        **times,
    }


def index_only(said: Sequence[Said], questions: Sequence[str], count: int, embedder: Embedder) -> dict[str, Any]:
    """Make the arrays and search them: what a search does but for reading its turns."""
    ids: dict[str, int] = {}
    terms = [np.array([ids.setdefault(t, len(ids) + 1) for t in words.terms(one.text)], np.uint32) for one in said]
    every = np.concatenate(terms)
    vectors = embedder.pool(embedder.token_ids([one.text for one in said]))
    dice = np.random.default_rng(1)
    index = NamespaceIndex(embedder.dimensions)
    for first in range(0, count, 4096):
        numbers = np.arange(first, min(first + 4096, count))
        rows = []
        for number in numbers.tolist():
            own = terms[number % len(said)]
            own = np.where(dice.random(len(own)) < 1 / 3, every[dice.integers(0, len(every), len(own))], own)
            own = np.append(own, dice.integers(len(ids) + 1, len(ids) + count)).astype("<u4")
            before = number if number % _SOURCE_TURNS else None
            one = said[number % len(said)]
            source = number // _SOURCE_TURNS
            rows.append(
                IndexRow(number + 1, before, None, source, one.speaker, one.event_at_s, 30, 0, own.tobytes(), None)
            )
        noise = dice.standard_normal((len(rows), embedder.dimensions)).astype(np.float32) * 0.03
        moved = vectors[numbers % len(said)] + noise
        index.append(rows, moved / np.linalg.norm(moved, axis=1, keepdims=True))

    def search(question: str) -> None:
        wanted = list(dict.fromkeys(words.terms(question)))
        known = tuple(ids[term] for term in wanted if term in ids)
        (vector,) = embedder.pool(embedder.token_ids([question]))
        query = scoring.Query(known, len(wanted) - len(known), vector, frozenset(), False)
        rows = candidates.find(index, query, candidates.CLOSE_LOOKS)
        np.argsort(-(scoring.features(index, query, rows) @ scoring.WEIGHTS), kind="stable")

    return {"index_bytes_per_turn": round(index.size_bytes / count), **_timed(questions, search)}


def _timed(questions: Sequence[str], search: Any) -> dict[str, Any]:
    asked = random.Random(2).sample(list(questions), min(_QUESTIONS, len(questions)))
    took: dict[str, list[float]] = {"search": [], "search_cpu": []}
    for question in [asked[0], *asked]:
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        search(question)
        took["search"].append(1000 * (time.perf_counter() - started_s))
        took["search_cpu"].append(1000 * (time.process_time() - started_cpu_s))
    # The first made what is made once.
    return {
        f"{name}_p{p}_ms": round(float(np.quantile(values[1:], p / 100)), 2)
        for name, values in took.items()
        for p in (50, 95, 99)
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--turns", type=int, default=100_000)
    parser.add_argument("--index-only", action="store_true")
    asked = parser.parse_args()
    conversations = corpus.read(asked.files)
    said = [one for c in conversations for _, turns in c.sessions for one in turns]
    questions = [question.text for c in conversations for question in c.questions]
    measure = index_only if asked.index_only else through_store
    found = measure(said, questions, asked.turns, static_vectors.load())
    print(json.dumps({"turns": asked.turns, **found, "wanted": _wanted(asked.turns)}))
    return 0


def _wanted(turns: int) -> dict[str, float]:
    """Return the goals: a search's is that of the next larger size that has one."""
    return {
        "ingest_turns_per_s": 2000,
        "index_bytes_per_turn": 1200,
        "search_p95_ms": 15 if turns <= 100_000 else 120,
    }


if __name__ == "__main__":
    sys.exit(main())
