"""Where calls stand, by their ids: the first bytes count, and they go with their messages."""

from __future__ import annotations

from pathlib import Path

from akashic_daemon.store.database import open_database
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.types import SystemClock

USER = Message(Role.USER, "go")


def calling(arguments: str, call_id: str = "call_1", name: str = "f") -> Message:
    return Message(Role.ASSISTANT, "", tool_calls=(ToolCall(call_id, name, arguments),))


def test_a_call_is_found_by_its_id_oldest_first_and_gone_with_its_sessions(tmp_path: Path) -> None:
    database = open_database(tmp_path / "store.db")
    try:
        store = SessionStore(database, SystemClock())
        for name, arguments in (("one", '{"a":  1}'), ("two", '{"a":1}'), ("three", '{"a":  1}')):
            store.ensure(name, origin="api")
            store.set_history(name, [USER, calling(arguments)] if name != "three" else [USER, USER, calling(arguments)])
        found = store.recall_calls(["call_1", "call_2"])
        assert [c.arguments for c in found["call_1"]] == ['{"a":  1}', '{"a":1}']
        assert found["call_2"] == ()
        store.remove("one")
        assert {c.arguments for c in store.recall_calls(["call_1"])["call_1"]} == {'{"a":  1}', '{"a":1}'}
        store.remove("two")
        store.remove("three")
        assert store.recall_calls(["call_1"]) == {"call_1": ()}
        assert database.connection.execute("SELECT count(*) FROM calls").fetchone()[0] == 0
    finally:
        database.close()


def test_a_damaged_message_is_no_call(tmp_path: Path) -> None:
    database = open_database(tmp_path / "store.db")
    try:
        store = SessionStore(database, SystemClock())
        store.ensure("one", origin="api")
        store.set_history("one", [USER, calling("{}")])
        database.connection.execute("UPDATE messages SET json = 'no JSON' WHERE depth = 1")
        assert store.recall_calls(["call_1"]) == {"call_1": ()}
    finally:
        database.close()
