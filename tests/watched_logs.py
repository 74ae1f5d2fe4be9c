"""Logs to be followed: a writer that renames and cuts as logs are, and a process that follows them until it is killed.

As a program, `python watched_logs.py HOME FOLDER [--words]`, it follows FOLDER into memory of HOME and prints what happens as
JSON lines; --words: with word vectors of the package instead of hashed ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from akashic_daemon.memory import static_vectors
from akashic_daemon.memory.embedder import Embedder
from akashic_daemon.memory_service.service import MemoryService
from akashic_daemon.memory_service.watch import MemoryWatch
from akashic_daemon.paths import find_paths
from hashed_words import HashedWords

NAMESPACE = "user"
_WORDS = [
    "cache",
    "token",
    "shard",
    "queue",
    "buffer",
    "thread",
    "signal",
    "vector",
    "socket",
    "parser",
    "kernel",
    "module",
    "branch",
    "commit",
    "review",
    "deploy",
    "server",
    "client",
    "index",
    "query",
    "column",
    "record",
    "budget",
    "window",
    "prompt",
    "answer",
    "memory",
    "policy",
    "trace",
    "switch",
    "filter",
    "stream",
    "retry",
]


@dataclass
class LogWriter:
    """Writes a Claude Code log; `expected` is each message's text by the line that names it."""

    path: Path
    seed: int = 0
    result_words: int = 300
    noise_words: int = 900
    expected: dict[str, str] = field(default_factory=dict)
    _number: int = 0
    _renamed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def turn(self) -> bytes:
        """Return the lines of a question, an answer on two lines, its tool's result, and noise."""
        self._number += 1
        n = self._number
        asked = f"question {n} about {self._some(8)}"
        result = f"result {n}\n{self._some(self.result_words)}"
        parts = f"thought {n} on {self._some(12)}", f"call {n}"
        call = {"type": "tool_use", "id": f"c{n}", "name": "Bash", "input": {"command": parts[1]}}
        text = {"type": "text", "text": parts[0]}
        back = {"type": "tool_result", "tool_use_id": f"c{n}", "content": result}
        self.expected |= {f"claude-code:u{n}": asked, f"claude-code:a{n}": parts[0], f"claude-code:r{n}": result}
        return b"".join(
            json.dumps({"sessionId": "s", "timestamp": "2026-01-05T10:00:00Z", **line}).encode() + b"\n"
            for line in (
                {"type": "user", "uuid": f"u{n}", "message": {"role": "user", "content": asked}},
                {"type": "progress", "uuid": f"p{n}", "data": self._some(self.noise_words)},
                {"type": "assistant", "uuid": f"a{n}", "message": {"id": f"m{n}", "content": [text]}},
                {"type": "assistant", "uuid": f"b{n}", "message": {"id": f"m{n}", "content": [call]}},
                {"type": "user", "uuid": f"r{n}", "message": {"role": "user", "content": [back]}},
            )
        )

    def write(self, turns: int) -> int:
        """Append turns, the last line in two parts; return how many bytes."""
        body = b"".join(self.turn() for _ in range(turns))
        cut = self._random.randrange(1, len(body))
        for part in (body[:cut], body[cut:]):
            with self.path.open("ab", buffering=0) as file:
                file.write(part)
        return len(body)

    def rename(self) -> None:
        """Begin a new file, as logrotate does."""
        self._renamed += 1
        self.path.rename(self.path.with_name(f"{self.path.name}.{self._renamed}"))
        self.path.touch()

    def _some(self, count: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=count))


@dataclass(frozen=True)
class Kept:
    """What is wrong with memory: references that are missing, that came twice, or whose text is another."""

    turns: int
    missing: tuple[str, ...]
    twice: tuple[str, ...]
    other: tuple[str, ...]


def check(home: Path, expected: dict[str, str]) -> Kept:
    """Compare what memory has with what was written. A message of several parts has a reference for each."""

    async def read() -> list[tuple[str, str]]:
        async with _memory(home, HashedWords()) as service:
            return await service._run(
                lambda opened: [
                    (origin.reference, turn.text)
                    for after in _pages(opened.store)
                    for turn in after
                    for origin in opened.store.sources_of(turn.id)
                ]
            )

    found = asyncio.run(read())
    whole: dict[str, list[str]] = {}
    for reference, text in found:
        whole.setdefault(reference.partition("#")[0], []).append(text)
    seen: dict[str, int] = {}
    for reference, _ in found:
        seen[reference] = seen.get(reference, 0) + 1
    return Kept(
        len(found),
        tuple(name for name in expected if name not in whole),
        tuple(name for name, count in seen.items() if count > 1),
        tuple(name for name, text in expected.items() if name in whole and not "".join(whole[name]).startswith(text)),
    )


def _pages(store: Any) -> Iterator[list[Any]]:
    after = 0
    while page := store.turns_of(NAMESPACE, after_id=after):
        yield page
        after = page[-1].id


class _memory:  # noqa: N801 - a context manager that reads as a function
    def __init__(self, home: Path, embedder: Embedder) -> None:
        async def known() -> Embedder:
            return embedder

        self._service = MemoryService(find_paths({"AKASHIC_HOME": str(home)}), known)

    async def __aenter__(self) -> MemoryService:
        return self._service

    async def __aexit__(self, *_: object) -> None:
        await self._service.close()


def start(home: Path, folder: Path, *, words: bool = False) -> subprocess.Popen[str]:
    """Start a process that follows a folder."""
    command = [sys.executable, __file__, str(home), str(folder), *(["--words"] if words else [])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def _follow(home: Path, folder: Path, embedder: Embedder) -> None:
    async with _memory(home, embedder) as service:
        watching = MemoryWatch(service).watch([str(folder)], namespace=NAMESPACE, quiet_s=2.0)
        async with aclosing(watching) as events:
            async for event in events:
                print(json.dumps(asdict(event)), flush=True)


def finish(home: Path, folder: Path) -> None:
    """Read what is left of a folder, the last messages included, which are held back while their logs may go on."""

    async def read() -> None:
        async with _memory(home, HashedWords()) as service:
            watching = MemoryWatch(service).watch([str(folder)], namespace=NAMESPACE, once=True, quiet_s=0.0)
            assert [event async for event in watching]

    asyncio.run(read())


def main() -> int:
    """Follow until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--words", action="store_true")
    asked = parser.parse_args()
    asyncio.run(_follow(asked.home, asked.folder, static_vectors.load() if asked.words else HashedWords()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
