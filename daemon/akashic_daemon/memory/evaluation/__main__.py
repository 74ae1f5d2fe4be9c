"""`python -m akashic_daemon.memory.evaluation FILE… --suite NAME…`: the result, or the error, as one JSON line."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from akashic_daemon.errors import AkashicError
from akashic_daemon.memory import static_vectors
from akashic_daemon.memory.evaluation import adaptive, compaction, corpus, false_recall, fit, retrieval
from akashic_daemon.memory.memory import Memory
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock

SUITES: dict[str, retrieval.Suite] = {
    "retrieval": retrieval.run,
    "leave-one-out": fit.run,
    "compaction": compaction.run,
    "adaptive": adaptive.run,
    "recall": false_recall.run,
}
"""What can be measured, by name. Each gets an empty memory of its own."""


def measure(paths: Sequence[Path], names: Sequence[str]) -> dict[str, Any]:
    """Run suites on files, in a folder that is removed afterwards. Raises TranscriptError for files of another shape."""
    conversations = corpus.read(paths)
    embedder = static_vectors.load()
    results: dict[str, Any] = {}
    started_s = time.perf_counter()
    for name in names:
        with tempfile.TemporaryDirectory(prefix="akashic-memory-") as folder:
            store = open_memory_store(Path(folder) / "memory.sqlite", SystemClock())
            try:
                results[name] = SUITES[name](conversations, Memory(store, embedder), embedder)
            finally:
                store.close()
    return {
        "files": [str(path) for path in paths],
        "conversations": len(conversations),
        "embedder": embedder.name,
        "wall_s": round(time.perf_counter() - started_s, 2),
        "suites": results,
    }


def main() -> int:
    """Measure what the arguments ask for and print one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--suite", nargs="+", choices=list(SUITES), default=["retrieval"])
    asked = parser.parse_args()
    try:
        news: dict[str, Any] = {"result": measure(asked.files, asked.suite)}
    except AkashicError as error:
        news = {"error": error.to_wire()}
    print(json.dumps(news), flush=True)
    return 0 if "result" in news else 1


if __name__ == "__main__":
    sys.exit(main())
