"""Opening, migrating and refusing; what a deletion leaves in the files."""

from __future__ import annotations

import hashlib
import resource
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from akashic_daemon.errors import Conflict, StoreError, StoreTooNew, StoreUnwritable
from akashic_daemon.store.check import Kind, check
from akashic_daemon.store.database import Database, open_database
from akashic_daemon.store.migrations import MIGRATIONS
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.trajectory.message import Message, Role, chain
from akashic_daemon.types import SystemClock


@contextmanager
def opened(path: Path, busy_timeout_ms: int = 0) -> Iterator[Database]:
    with closing(open_database(path, busy_timeout_ms=busy_timeout_ms)) as database:
        yield database


def write_version_1(path: Path) -> None:
    """A database as version 1 left it: a session, a branch that no session reaches, and ids of a text unsampled."""
    kept, left = Message(Role.USER, "kept"), Message(Role.USER, "left behind")
    with closing(sqlite3.connect(path)) as c:
        for statement in MIGRATIONS[0]:
            c.execute(statement)
        for row_id, message in enumerate((kept, left), start=1):
            text = f'{{"role": "user", "content": "{message.content}"}}'
            c.execute(
                "INSERT INTO messages VALUES (?, NULL, 0, ?, ?, ?, 1.0)",
                (row_id, chain(None, message), message.digest(), text),
            )
            c.execute("INSERT INTO sampled VALUES (?, 'text1:a', x'01000000')", (chain(None, message),))
        c.execute("INSERT INTO sampled VALUES (?, 'text1:empty', x'')", (chain(None, kept),))
        c.execute("INSERT INTO sessions VALUES (1, 'old', 1, 'title', 'chat', NULL, 1.0, 2.0, NULL)")
        c.execute("PRAGMA user_version=1")
        c.commit()


def test_a_new_database_and_its_log_are_private_and_reopen_at_the_newest_version(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(path) as database:
        files = sorted(tmp_path.iterdir())
        assert len(files) == 3
        assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
        assert check(database) == []
    with opened(path) as database:
        assert database.connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)


def test_rights_that_others_had_are_taken_on_opening(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch(mode=0o644)
    path.chmod(0o644)
    with opened(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_migrations_that_were_released_never_change() -> None:
    digests = [hashlib.sha256("\n".join(m).encode()).hexdigest()[:16] for m in MIGRATIONS]
    assert digests == [
        "07687744cf0104e4",
        "1b6b55e37da18bec",
        "2a5033389aebef71",
        "a18bfed09b1848ff",
        "30c7cadd86d57cac",
        "9d455ca55f3a69e0",
        "6e618dc6f0e2fd34",
        "021a91fb94ef32fc",
        "eaeb2eed3f472ea1",
        "bee2858b886bf197",
        "278a16d0235fc5b1",
    ]


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 1))
def test_a_database_of_every_version_opens_with_its_sessions_and_is_as_a_new_one(tmp_path: Path, version: int) -> None:
    path = tmp_path / "old.db"
    write_version_1(path)
    open_database(path, migrations=MIGRATIONS[:version]).close()
    with opened(path) as database, opened(tmp_path / "new.db") as new:
        assert [m.message.content for m in SessionStore(database, SystemClock()).messages("old")] == ["kept"]
        assert check(database) == []
        described = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
        assert database.connection.execute(described).fetchall() == new.connection.execute(described).fetchall()


def test_an_old_database_opens_with_its_sessions_and_without_what_nothing_reached(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    write_version_1(path)
    with opened(path) as database:
        store = SessionStore(database, SystemClock())
        assert [m.message.content for m in store.messages("old")] == ["kept"]
        assert check(database) == []
        database.connection.execute("UPDATE messages SET created_at_s = 1.5")
        assert [f.kind for f in check(database)] == [Kind.WRONG_CHECKSUM]
        database.connection.execute("UPDATE messages SET created_at_s = 1.0")
        assert database.connection.execute("SELECT count(*) FROM messages").fetchone()[0] == 1
        assert database.connection.execute("SELECT text_digest FROM sampled").fetchall() == [("text1:a",)]
        assert store.remove("old") == (1, 0)
        assert check(database) == []


def test_a_migration_that_fails_leaves_the_old_version_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.db"
    write_version_1(path)
    broken = (MIGRATIONS[0], (*MIGRATIONS[1], "CREATE TABLE messages (id)"))
    with monkeypatch.context() as patch:
        patch.setattr("akashic_daemon.store.database.MIGRATIONS", broken)
        with pytest.raises(StoreError):
            open_database(path)
    with closing(sqlite3.connect(path)) as c:
        assert c.execute("PRAGMA user_version").fetchone()[0] == 1
        assert c.execute("SELECT count(*) FROM messages").fetchone()[0] == 2
        assert c.execute("SELECT count(*) FROM sqlite_master WHERE name = 'past_heads'").fetchone()[0] == 0
    with opened(path) as database:
        assert check(database) == []


def test_a_newer_database_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(path) as database:
        database.connection.execute("PRAGMA user_version=777")
    before = path.read_bytes()
    with pytest.raises(StoreTooNew) as caught:
        open_database(path)
    assert "777" in caught.value.message
    assert str(len(MIGRATIONS)) in caught.value.message
    assert path.read_bytes() == before


def write_text(path: Path) -> None:
    path.write_text("these are notes, not a database. " * 200)


def write_foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as c:
        c.execute("CREATE TABLE recipes (text)")
        c.commit()


def write_damaged(path: Path) -> None:
    with opened(path):
        pass
    data = bytearray(path.read_bytes())
    data[100:4096] = b"\xff" * 3996
    path.write_bytes(data)


@pytest.mark.parametrize("write", [write_text, write_foreign, write_damaged])
def test_what_is_no_store_is_refused_and_left_as_it_is(tmp_path: Path, write: object) -> None:
    assert callable(write)
    path = tmp_path / "a.db"
    write(path)
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        open_database(path)
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreUnwritable) as caught:
        open_database(tmp_path / "nowhere" / "a.db")
    assert "nowhere" in caught.value.message
    assert "AKASHIC_HOME" in (caught.value.hint or "")


def test_no_room_for_the_first_byte_is_unwritable_and_a_later_opening_works(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        with pytest.raises(StoreUnwritable):
            open_database(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with opened(path) as database:
        assert check(database) == []


def test_a_database_that_may_only_be_read_says_so_and_keeps_its_content(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db") as database:
        store = SessionStore(database, SystemClock())
        store.create("s", origin="test")
        database.connection.execute("PRAGMA query_only=ON")
        with pytest.raises(StoreUnwritable):
            store.append("s", [Message(Role.USER, "x")])
        database.connection.execute("PRAGMA query_only=OFF")
        assert store.append("s", [Message(Role.USER, "x")]) == 1


def test_a_second_writer_gets_conflict_when_the_first_does_not_end(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(path) as first, opened(path) as second:
        store = SessionStore(second, SystemClock())
        with first.transaction(), pytest.raises(Conflict):
            store.create("s", origin="test")
        store.create("s", origin="test")
        assert SessionStore(first, SystemClock()).get("s").name == "s"


def test_a_second_writer_waits_for_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    begun = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            with opened(path, busy_timeout_ms=60_000) as database:
                begun.set()
                SessionStore(database, SystemClock()).create("second", origin="test")
        except BaseException as error:  # noqa: BLE001 - told to the main thread
            failed.append(error)
            begun.set()

    with opened(path) as first:
        thread = threading.Thread(target=write)
        with first.transaction() as c:
            thread.start()
            assert begun.wait(60)
            c.execute("INSERT INTO sessions VALUES (1, 'first', NULL, '', '', NULL, 1.0, 1.0, NULL)")
        thread.join(60)
        assert failed == []
        assert {r.name for r in SessionStore(first, SystemClock()).all()} == {"first", "second"}


def test_another_thread_is_refused_as_a_bug_not_as_a_damaged_store(tmp_path: Path) -> None:
    caught: list[BaseException] = []
    with opened(tmp_path / "a.db") as database:

        def use() -> None:
            try:
                SessionStore(database, SystemClock()).count()
            except BaseException as error:  # noqa: BLE001 - told to the main thread
                caught.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert [type(e) for e in caught] == [sqlite3.ProgrammingError]


def test_removed_text_is_in_no_file_of_the_store_and_its_room_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    secret = "xylophone-quartz"
    with opened(path) as database:
        store = SessionStore(database, SystemClock())
        empty_pages = database.connection.execute("PRAGMA page_count").fetchone()[0]
        store.create("s", origin="test")
        store.append("s", [Message(Role.USER, f"{secret} {i} " * 20) for i in range(400)])
        store.rewind("s", 5)
        store.append("s", [Message(Role.ASSISTANT, f"{secret} again")])
        assert any(secret.encode() in f.read_bytes() for f in tmp_path.iterdir())
        assert store.remove("s") == (401, 0)
        assert [f.name for f in tmp_path.iterdir() if secret.encode() in f.read_bytes()] == []
        assert database.connection.execute("PRAGMA freelist_count").fetchone()[0] == 0
        assert database.connection.execute("PRAGMA page_count").fetchone()[0] <= empty_pages + 2
        assert check(database) == []


def test_removal_says_when_a_reader_keeps_the_bytes_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(path) as database, opened(path) as reader:
        store = SessionStore(database, SystemClock())
        store.create("s", origin="test")
        store.append("s", [Message(Role.USER, "xylophone")])
        reader.connection.execute("BEGIN")
        reader.connection.execute("SELECT count(*) FROM messages").fetchone()
        with pytest.raises(Conflict, match="still in its log"):
            store.remove("s")
        assert store.all() == []
        reader.connection.rollback()
        database.shrink()
        assert not any(b"xylophone" in f.read_bytes() for f in tmp_path.iterdir())
