"""Every kind of damage is found; nothing is mended unasked."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path as FilePath

import pytest

from akashic_daemon.errors import StoreError
from akashic_daemon.program.align import Trace
from akashic_daemon.program.path import Path
from akashic_daemon.sessions.traces import Known
from akashic_daemon.store.book import BookStore, Unwritten
from akashic_daemon.store.check import MENDABLE, Kind, check
from akashic_daemon.store.database import Database, open_database
from akashic_daemon.store.models import ModelRegistry
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SystemClock

DAMAGE = {
    Kind.WRONG_DIGEST: "UPDATE messages SET json = replace(json, 'two', 'tow') WHERE id = 2",
    Kind.UNREADABLE_MESSAGE: "UPDATE messages SET json = '[]' WHERE id = 2",
    Kind.WRONG_CHAIN: "UPDATE messages SET chain = 'chain1:0' WHERE id = 3",
    Kind.WRONG_CHECKSUM: "UPDATE messages SET created_at_s = created_at_s + 1 WHERE id = 2",
    Kind.WRONG_COUNT: "UPDATE messages SET depth = 9 WHERE id = 3",
    Kind.DANGLING: "UPDATE sessions SET head_id = 99",
    Kind.ORPHAN_MESSAGE: "UPDATE sessions SET head_id = 1",
    Kind.ORPHAN_SAMPLED: "UPDATE sampled SET parent_chain = 'chain1:gone'",
    Kind.DAMAGED_SAMPLED: "UPDATE sampled SET token_ids = x'010203'",
    Kind.DAMAGED_TRACE: "UPDATE traces SET body = x'0102'",
    Kind.DAMAGED_PLACES: "UPDATE places SET json = replace(json, '4', '3')",
    Kind.WRONG_WINDOW: "UPDATE sessions SET window_start_message = 4",
    Kind.TWO_DEFAULTS: "UPDATE models SET is_default = 1",
}


@pytest.fixture
def database(tmp_path: FilePath) -> Iterator[Database]:
    database = open_database(tmp_path / "a.db")
    store = SessionStore(database, SystemClock())
    store.create("s", origin="test")
    store.append("s", [Message(Role.USER, "one"), Message(Role.USER, "two")])
    parent = store.head("s")
    store.append("s", [Message(Role.ASSISTANT, "three")])
    store.remember_sampled(parent, "three", [1, 2])
    trace = Trace(Path(array("i", [1, 2])), (), open_tail=False)
    known = Known("s", "m", "model1:x", trace, ())
    BookStore(database).write("s", Unwritten(traces={"model1:x": (known, {})}, places={"op": [4]}))
    registry = ModelRegistry(database)
    for name in ("a", "b"):
        registry.add(name, f"/models/{name}.gguf", 1, 1, default=True)
    yield database
    database.close()


def rows(database: Database) -> list[object]:
    c = database.connection
    return [
        c.execute(f"SELECT * FROM {t}").fetchall()
        for t in ("messages", "sessions", "sampled", "traces", "places", "models")
    ]


def test_a_sound_store_has_no_findings(database: Database) -> None:
    assert check(database) == []


def test_every_kind_of_damage_in_rows_is_tried_here() -> None:
    assert set(Kind) == set(DAMAGE) | {Kind.DAMAGED_FILE}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_changes_nothing_and_holds_no_text(database: Database, kind: Kind) -> None:
    database.connection.execute("PRAGMA foreign_keys=OFF")
    database.connection.execute(DAMAGE[kind])
    before = rows(database)
    findings = check(database)
    assert kind in {f.kind for f in findings}
    assert all(f.subject and f.detail for f in findings)
    assert not any(word in f.detail for f in findings for word in ("two", "tow", "three"))
    assert rows(database) == before


@pytest.mark.parametrize("kind", [k for k in DAMAGE if k in MENDABLE])
def test_what_nothing_reaches_is_deleted_when_asked(database: Database, kind: Kind) -> None:
    database.connection.execute(DAMAGE[kind])
    assert kind in {f.kind for f in check(database, fix=True)}
    assert check(database) == []


@pytest.mark.parametrize("kind", [Kind.WRONG_DIGEST, Kind.WRONG_CHAIN, Kind.WRONG_CHECKSUM, Kind.WRONG_COUNT])
def test_what_may_still_be_worth_something_is_left_also_when_asked(database: Database, kind: Kind) -> None:
    database.connection.execute(DAMAGE[kind])
    check(database, fix=True)
    assert kind in {f.kind for f in check(database)}


@pytest.mark.parametrize("damage", ["x'010203'", "x''", "'text'", "17", "x'ffffffff'"])
def test_a_session_is_read_without_the_ids_of_an_answer_that_are_damaged(database: Database, damage: str) -> None:
    store = SessionStore(database, SystemClock())
    store.create("t", origin="test")
    store.append("t", [Message(Role.USER, "asked"), Message(Role.ASSISTANT, "answered")])
    asked, _ = store.messages("t")
    store.remember_sampled(asked.chain, "answered", [5, 6])
    assert store.messages("t")[1].token_ids == (5, 6)
    database.connection.execute(f"UPDATE sampled SET token_ids = {damage}")
    assert [m.token_ids for m in store.messages("t")] == [None, None]
    assert store.recall_sampled(asked.chain, "answered") is None
    assert store.recall_text("answered") is None
    assert Kind.DAMAGED_SAMPLED in {f.kind for f in check(database)}


WHOLE = Message(
    Role.TOOL,
    "said",
    thinking="thought",
    tool_call_id="call",
    name="tool",
    is_error=True,
    event_time_s=17.25,
    compaction=True,
    source="log:1",
)


def test_every_flipped_byte_of_a_message_is_found_and_never_read_as_good(database: Database) -> None:
    """Also in what the message's digest leaves out, and where the byte makes the text no UTF-8."""
    store = SessionStore(database, SystemClock())
    store.create("t", origin="test")
    store.append("t", [WHOLE])
    assert check(database) == []
    row_id = database.connection.execute("SELECT max(id) FROM messages").fetchone()[0]
    text = database.connection.execute("SELECT json FROM messages WHERE id = ?", (row_id,)).fetchone()[0].encode()
    for key in ("is_error", "event_time_s", "source", "compaction"):
        assert key.encode() in text
    for at in range(len(text)):
        for mask in (0x01, 0x80):
            flipped = text[:at] + bytes([text[at] ^ mask]) + text[at + 1 :]
            database.connection.execute("UPDATE messages SET json = CAST(? AS TEXT) WHERE id = ?", (flipped, row_id))
            assert Kind.WRONG_CHECKSUM in {f.kind for f in check(database)}
            with pytest.raises(StoreError):
                store.messages("t")
    database.connection.execute("UPDATE messages SET json = CAST(? AS TEXT) WHERE id = ?", (text, row_id))
    assert check(database) == []
    assert store.messages("t")[0].message == WHOLE


def test_a_damaged_page_is_found_and_never_mended(tmp_path: FilePath, database: Database) -> None:
    database.shrink()
    root = database.connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages_parent'").fetchone()[
        0
    ]
    size = database.connection.execute("PRAGMA page_size").fetchone()[0]
    database.close()
    path = tmp_path / "a.db"
    data = bytearray(path.read_bytes())
    data[(root - 1) * size + size - 40 : root * size] = b"\x07" * 40
    path.write_bytes(data)
    again = open_database(path)
    before = rows(again)
    assert {f.kind for f in check(again, fix=True)} == {Kind.DAMAGED_FILE}
    assert rows(again) == before
    again.close()
