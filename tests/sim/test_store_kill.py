"""The store after kill -9, on disks that refuse, with files that aren't ours, and after a removal."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from akashic_daemon.errors import StoreError, StoreTooNew, StoreUnwritable
from akashic_daemon.store.database import open_database
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.trajectory.message import Message, Role, chain_all
from akashic_daemon.types import SystemClock

SESSIONS = 3
WRITER = """
import sys
from pathlib import Path
from akashic_daemon.store.database import open_database
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SystemClock

store = SessionStore(open_database(Path(sys.argv[1])), SystemClock())
while True:
    for number in range(int(sys.argv[2])):
        name = f"s{number}"
        store.ensure(name, origin="chat")
        at = len(store.messages(name))
        store.append(name, [Message(Role.USER, f"{name} says {at + i} " + "x" * 300) for i in range(3)])
        print(name, at + 3, flush=True)
"""
LIMITED = """
import resource, sys
from pathlib import Path
from akashic_daemon.errors import StoreUnwritable
from akashic_daemon.store.database import open_database
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SystemClock

store = SessionStore(open_database(Path(sys.argv[1])), SystemClock())
store.create("kept", origin="chat")
store.append("kept", [Message(Role.USER, "before")])
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
try:
    store.append("kept", [Message(Role.USER, "y" * 5_000_000)])
except StoreUnwritable as error:
    print(error.hint)
    sys.exit(7)
"""


def open_store(path: Path) -> SessionStore:
    return SessionStore(open_database(path), SystemClock())


def test_a_store_whose_writer_was_killed_eight_times_opens_and_verifies(tmp_path: Path) -> None:
    """Invariant 6. What was acknowledged is there, and each append is there whole or not at all."""
    path, chance = tmp_path / "akashic.db", random.Random(5)
    for _ in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(SESSIONS)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 30)):
            assert writer.stdout.readline()
        writer.kill()
        told = dict(line.split() for line in writer.stdout.read().splitlines() if len(line.split()) == 2)
        writer.stdout.close()
        writer.wait()
        database = open_database(path)
        try:
            assert database.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            assert database.connection.execute("PRAGMA foreign_key_check").fetchall() == []
            store = SessionStore(database, SystemClock())
            rows = store.all()
            assert rows
            for row in rows:
                stored = store.messages(row.name)
                assert len(stored) == row.message_count
                assert len(stored) % 3 == 0
                assert len(stored) >= int(told.get(row.name, "0"))
                assert [m.message.content.split(" x")[0] for m in stored] == [
                    f"{row.name} says {i}" for i in range(len(stored))
                ]
                assert [m.chain for m in stored] == chain_all(m.message for m in stored)
        finally:
            database.close()


def test_a_full_disk_refuses_the_write_and_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "akashic.db"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "space" in done.stdout
    database = open_database(path)
    try:
        messages = SessionStore(database, SystemClock()).messages("kept")
        assert [m.message.content for m in messages] == ["before"]
    finally:
        database.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_said_to_be_unwritable(tmp_path: Path) -> None:
    folder = tmp_path / "ro"
    folder.mkdir(mode=0o500)
    with pytest.raises(StoreUnwritable, match=r"akashic\.db"):
        open_database(folder / "akashic.db")


def test_a_path_that_cannot_be_a_file_is_said_to_be_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "akashic.db", tmp_path / "folder", tmp_path / "absent" / "akashic.db"):
        with pytest.raises(StoreUnwritable):
            open_database(path)


@pytest.mark.parametrize("content", [b"this is a diary, not a database\n" * 200, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "akashic.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"akashic\.db"):
        open_database(path)
    assert path.read_bytes() == content


def test_a_database_of_a_newer_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "akashic.db"
    open_database(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=999")
    connection.close()
    with pytest.raises(StoreTooNew, match="999"):
        open_database(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone()[0] == 999
    connection.close()


def test_a_message_changed_on_disk_is_found_when_it_is_read(tmp_path: Path) -> None:
    database = open_database(tmp_path / "akashic.db")
    store = SessionStore(database, SystemClock())
    store.create("s", origin="chat")
    store.append("s", [Message(Role.USER, "the price is 100")])
    database.connection.execute("UPDATE messages SET json = replace(json, '100', '900')")
    with pytest.raises(StoreError, match="changed on disk"):
        store.messages("s")
    database.close()


@pytest.mark.parametrize("size", [20, 100_000])
def test_a_removed_session_leaves_no_byte_of_its_text_in_any_file(tmp_path: Path, size: int) -> None:
    database = open_database(tmp_path / "akashic.db")
    store = SessionStore(database, SystemClock())
    secret = "Xq7-secret-words-"
    for name, text in (("gone", secret), ("stays", "harmless-words-")):
        store.create(name, origin="chat")
        store.append(name, [Message(Role.USER, f"{text}{i} " + "z" * size) for i in range(12)])
    store.remember_sampled(chain_all([m.message for m in store.messages("gone")])[-1], secret, [1, 2, 3])

    def files_with(text: str) -> list[str]:
        return [p.name for p in tmp_path.iterdir() if text.encode() in p.read_bytes()]

    assert files_with(secret), "the test looks in the wrong place"
    store.remove("gone")
    assert files_with(secret) == []
    assert files_with("harmless-words-")
    assert len(store.messages("stays")) == 12
    database.close()
    assert files_with(secret) == []


def test_what_another_session_shares_survives_a_removal(tmp_path: Path) -> None:
    database = open_database(tmp_path / "akashic.db")
    store = SessionStore(database, SystemClock())
    store.create("trunk", origin="chat")
    store.append("trunk", [Message(Role.USER, f"shared {i}") for i in range(4)])
    store.fork("trunk", "branch", 2)
    store.append("branch", [Message(Role.USER, "only in the branch")])
    assert store.remove("trunk") == (2, 2)
    assert [m.message.content for m in store.messages("branch")] == ["shared 0", "shared 1", "only in the branch"]
    database.close()
