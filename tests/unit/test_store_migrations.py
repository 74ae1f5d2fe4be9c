"""Databases of memory and of blocks that earlier versions wrote: they open, with what is in them."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from akashic_daemon.store.blocks import schema as blocks
from akashic_daemon.store.database import open_database
from akashic_daemon.store.memory import schema as memory
from akashic_daemon.store.memory.rows import NewTurn, turn_digest
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock

TEXTS = ("the cat sat", "the dog ran")


def digests(migrations: Sequence[Sequence[str]]) -> list[str]:
    return [hashlib.sha256("\n".join(m).encode()).hexdigest()[:16] for m in migrations]


def test_migrations_that_were_released_never_change() -> None:
    assert digests(memory.MIGRATIONS) == ["c0be192f64093fcb", "5f5390e6c3e5c20c", "d29dd1e5b4e1fbdd"]
    assert digests(blocks.MIGRATIONS) == ["c6f8c38fe8fb8c24"]


def write_version_1(path: Path) -> None:
    """Write a memory database as version 1 left it: two turns of one source in an open chunk, with their terms."""
    with closing(sqlite3.connect(path)) as c:
        for statement in memory.MIGRATIONS[0]:
            c.execute(statement)
        c.execute("INSERT INTO namespaces VALUES (1, 'user', 1.0)")
        c.execute("INSERT INTO sources VALUES (1, 1, 's1')")
        c.execute("INSERT INTO chunks VALUES (1, 1, 6, 1.0, NULL, NULL, NULL)")
        for number, text in enumerate(TEXTS, start=1):
            row = (number, turn_digest("Ann", text), number - 1 or None, text)
            c.execute("INSERT INTO turns VALUES (?, 1, ?, 1, ?, 1, 'Ann', ?, NULL, 3, 0, 1.0)", row)
            c.execute("INSERT INTO provenance VALUES (?, 1, ?, NULL)", (number, f"m{number}"))
        c.execute("PRAGMA user_version=1")
        c.commit()


@pytest.mark.parametrize("version", range(1, len(memory.MIGRATIONS) + 1))
def test_a_memory_of_every_version_opens_with_its_turns_and_is_as_a_new_one(tmp_path: Path, version: int) -> None:
    path = tmp_path / "old.sqlite"
    write_version_1(path)
    open_database(path, migrations=memory.MIGRATIONS[:version], tables=memory.TABLES).close()
    with (
        closing(open_memory_store(path, SystemClock())) as store,
        closing(open_memory_store(tmp_path / "new.sqlite", SystemClock())),
    ):
        assert [turn.text for turn in store.turns_of("user")] == list(TEXTS)
        again = store.add_turns("user", "s1", [NewTurn("Ann", text, f"m{n}") for n, text in enumerate(TEXTS, start=1)])
        assert again.new_ids == ()
        assert store.forget(again.turn_ids).turn_ids == again.turn_ids
    described = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(tmp_path / "new.sqlite")) as new:
        assert old.execute(described).fetchall() == new.execute(described).fetchall()
