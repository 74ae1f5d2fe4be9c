"""How many extents a question's results touch, before and after chunks are laid by what is found together.

    python tests/bench/memory_layout.py FILE [--extent-kib 64]

FILE has conversations of LoCoMo's shape; their sessions are remembered in turns, all in one namespace. Every second question
is asked first and noted, as searches are; the others are measured. `same`: whether all records and results are the same
afterwards. write_amplification: bytes written over bytes stored, of all regroupings while the namespace grew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from akashic_daemon.memory import chunks, ingest, reconcile, static_vectors
from akashic_daemon.memory.evaluation import corpus
from akashic_daemon.memory.extents import open_extents
from akashic_daemon.memory.memory import Memory
from akashic_daemon.memory.worker import regroup_all
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock

SPACE = "user"
_RESULTS = 20


def remember(memory: Memory, conversations: Sequence[corpus.Conversation]) -> None:
    """Store the sessions in turns, reconciling and regrouping as a daemon does."""
    sessions = ([(c.name, session) for session in c.sessions] for c in conversations)
    for name, (source, said) in filter(None, itertools.chain(*itertools.zip_longest(*sessions))):
        ingest.remember(memory, SPACE, f"{name} {source}", said)
        reconcile_waiting(memory)
        regroup_all(memory)
    chunks.seal(memory, SPACE)
    reconcile_waiting(memory)


def reconcile_waiting(memory: Memory) -> None:
    """Reconcile all that waits, without a model."""
    for chunk in memory.store.waiting_chunks(1000):
        task = reconcile.prepare(memory, chunk.id)
        reconcile.store(memory, task, task.extractive)


def asked(memory: Memory, questions: Sequence[corpus.Question]) -> list[list[int]]:
    """Return the turns that each question finds."""
    return [[span.turn.id for span in memory.search([SPACE], q.text, limit=_RESULTS)] for q in questions]


def fan_out(memory: Memory, results: Sequence[Sequence[int]]) -> float:
    """Return how many extents a result touches on average."""
    assert memory.extents is not None
    extent_of = {chunk: extent for extent, held in memory.extents.layout(SPACE).items() for chunk in held}
    turns = memory.store.turns(sorted({turn for found in results for turn in found}))
    touched = [{extent_of.get(turns[turn].chunk_id or 0, -turn) for turn in found} for found in results if found]
    return statistics.fmean(map(len, touched))


def main() -> None:
    """Print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--extent-kib", type=int, default=64)
    options = parser.parse_args()
    conversations = corpus.read([options.file])
    questions = [question for c in conversations for question in c.questions]
    logged, held_out = questions[::2], questions[1::2]
    with tempfile.TemporaryDirectory() as folder:
        store = open_memory_store(Path(folder) / "memory.sqlite", SystemClock())
        memory = Memory(store, static_vectors.load())
        extents = open_extents(Path(folder) / "memory", SystemClock(), extent_bytes=options.extent_kib << 10)
        memory.extents = extents
        remember(memory, conversations)
        store.log_all([(SPACE, found) for found in asked(memory, logged)])
        results = asked(memory, held_out)
        records = {chunk: extents.read(SPACE, chunk) for chunk in extents.chunks(SPACE)}
        before, count = fan_out(memory, results), len(extents.layout(SPACE))
        done = extents.regroup(SPACE, store.links_of(SPACE), store.result_chunks(SPACE))
        same = records == {c: extents.read(SPACE, c) for c in records} and results == asked(memory, held_out)
        figures = {
            "chunks": len(records),
            "extents": count,
            "fan_out_before": round(before, 3),
            "fan_out_after": round(fan_out(memory, results), 3),
            "moved_bytes": 0 if done is None else done.moved_bytes,
            "write_amplification": round(extents.write_amplification, 3),
            "same": same,
        }
        print(json.dumps(figures))
        extents.close()
        store.close()


if __name__ == "__main__":
    main()
