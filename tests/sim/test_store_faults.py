"""The store under kill -9 and under a disk that refuses the N-th write."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from akashic_daemon.errors import StoreUnwritable
from akashic_daemon.store.check import check
from akashic_daemon.store.database import Database, open_database
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SystemClock
from disk_faults import largest_file

_BATCH = 40
_WRITER = """
import sys
from pathlib import Path
from akashic_daemon.store.database import open_database
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SystemClock
BATCH = int(sys.argv[2])
store = SessionStore(open_database(Path(sys.argv[1])), SystemClock())
store.ensure("main", origin="test")
while True:
    at = store.get("main").message_count
    store.append("main", [Message(Role.USER, f"message {at + i} " * 30) for i in range(BATCH)])
    print("stored", at + BATCH, flush=True)
    store.fork("main", "branch", at)
    store.append("branch", [Message(Role.USER, f"branch of {at} " * 30)])
    store.rewind("branch", 0)
    store.remove("branch")
    print("removed", at, flush=True)
"""


def test_killed_in_mid_write_the_store_opens_whole_with_all_that_was_told_as_stored(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for told in range(1, 11):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), str(_BATCH)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        lines = list(itertools.islice(writer.stdout, told))
        writer.kill()  # while it goes on with the next write
        lines += writer.stdout.readlines()
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL
        stored = max(int(line.split()[1]) for line in lines if line.startswith("stored"))
        database = open_database(path)
        assert check(database) == []
        store = SessionStore(database, SystemClock())
        texts = [m.message.content for m in store.messages("main")]
        assert len(texts) in (stored, stored + _BATCH)
        assert texts == [f"message {i} " * 30 for i in range(len(texts))]
        if any(row.name == "branch" for row in store.all()):
            store.remove("branch")
        database.close()


def state(store: SessionStore) -> dict[str, list[str]]:
    return {r.name: [m.message.content for m in store.messages(r.name)] for r in store.all()}


def new_store(path: Path) -> tuple[Database, SessionStore]:
    database = open_database(path)
    store = SessionStore(database, SystemClock())
    store.create("s", origin="test")
    store.append("s", [Message(Role.USER, f"old {i} " * 50) for i in range(60)])
    store.fork("s", "other", 20)
    store.append("other", [Message(Role.USER, f"other {i} " * 50) for i in range(60)])
    database.shrink()
    return database, store


OPERATIONS: dict[str, Callable[[SessionStore], object]] = {
    "append": lambda s: s.append("s", [Message(Role.USER, f"new {i} " * 50) for i in range(60)]),
    "set_history": lambda s: s.set_history("s", [Message(Role.USER, f"edited {i} " * 50) for i in range(60)]),
    "fork": lambda s: s.fork("s", "fork", 30),
    "rewind": lambda s: s.rewind("s", 3),
    "rename": lambda s: s.rename("other", "renamed"),
    "remove": lambda s: s.remove("other"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_whichever_write_fails_the_store_holds_all_or_nothing_and_goes_on(tmp_path: Path, operation: str) -> None:
    run = OPERATIONS[operation]
    whole, expected = new_store(tmp_path / "whole.db")
    before = state(expected)
    run(expected)
    after = state(expected)
    whole.close()

    database, store = new_store(tmp_path / "a.db")
    failures = 0
    for limit in itertools.count(0, 2048):
        try:
            with largest_file(limit):
                run(store)
            break
        except StoreUnwritable:
            failures += 1
        assert check(database) == []
        assert state(store) in (before, after)
        if operation == "remove" and state(store) == after:
            break  # gone; only its bytes had to wait for room
        assert state(store) == before
    assert failures > 1
    assert state(store) == after
    database.shrink()
    if operation == "remove":
        assert not any(b"other 1 " in f.read_bytes() for f in tmp_path.glob("a.db*"))
    database.close()
    again = open_database(tmp_path / "a.db")
    assert check(again) == []
    assert state(SessionStore(again, SystemClock())) == after
    again.close()


def test_a_full_database_refuses_page_by_page_until_there_is_room(tmp_path: Path) -> None:
    database, store = new_store(tmp_path / "a.db")
    before = state(store)
    pages = database.connection.execute("PRAGMA page_count").fetchone()[0]
    failures = 0
    for limit in itertools.count(pages):
        database.connection.execute(f"PRAGMA max_page_count={limit}")
        try:
            OPERATIONS["append"](store)
            break
        except StoreUnwritable:
            failures += 1
            assert state(store) == before
            assert check(database) == []
    assert failures > 3
    assert len(state(store)["s"]) == 120
    assert check(database) == []
    database.close()
