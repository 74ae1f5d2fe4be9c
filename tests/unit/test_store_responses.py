"""Stored responses: a chain is one history, what was changed on disk is not believed, and what is gone is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.errors import NotFound, StoreError
from akashic_daemon.store import responses as module
from akashic_daemon.store.database import Database, open_database
from akashic_daemon.store.responses import ResponseStore, StoredResponse
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.types import SystemClock


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(tmp_path / "a.db")
    yield opened
    opened.close()


def put(store: ResponseStore, name: str, previous: str | None, session: str | None = None) -> StoredResponse:
    body: dict[str, Any] = {"id": name, "output": [{"text": f"answer {name}"}], "temperature": 0.5}
    response = StoredResponse(name, previous, ({"text": f"ask {name} é \ud800"},), body)
    store.put(response, session, 1.0)
    return response


def test_a_response_comes_back_as_it_was_stored(database: Database) -> None:
    store = ResponseStore(database)
    stored = put(store, "a", None)
    assert store.get("a") == stored


def test_the_history_of_a_chain_is_every_item_oldest_first(database: Database) -> None:
    store = ResponseStore(database)
    for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
        put(store, name, previous)
    said = [item["text"].replace(" é \ud800", "") for item in store.history("c")]
    assert said == ["ask a", "answer a", "ask b", "answer b", "ask c", "answer c"]


def test_what_continues_a_deleted_response_says_which_is_missing(database: Database) -> None:
    store = ResponseStore(database)
    put(store, "a", None)
    put(store, "b", "a")
    store.remove("a")
    with pytest.raises(NotFound, match="'b' continues 'a', which is no longer stored"):
        store.history("b")
    for call in (store.get, store.history, store.remove):
        with pytest.raises(NotFound, match="no stored response 'a'"):
            call("a")


def test_a_deleted_response_is_in_no_file(database: Database, tmp_path: Path) -> None:
    store = ResponseStore(database)
    put(store, "xyzzy-1", None)
    put(store, "kept", None)
    assert any(b"ask xyzzy-1" in file.read_bytes() for file in tmp_path.iterdir())
    store.remove("xyzzy-1")
    assert not any(b"xyzzy-1" in file.read_bytes() for file in tmp_path.iterdir())


def test_a_response_goes_with_its_session(database: Database) -> None:
    store, sessions = ResponseStore(database), SessionStore(database, SystemClock())
    for name in ("mine", "yours"):
        sessions.ensure(name, origin="api")
        put(store, f"of-{name}", None, name)
    put(store, "of-none", None, None)
    put(store, "of-gone", None, "removed while it was answered")
    sessions.remove("mine")
    for name in ("mine", "gone"):
        with pytest.raises(NotFound):
            store.get(f"of-{name}")
    assert [store.get(f"of-{name}").id for name in ("yours", "none")] == ["of-yours", "of-none"]


@pytest.mark.parametrize(
    "change", ["items = '[]'", "body = '{}'", "previous = 'x'", "items = 5", "body = CAST(body AS BLOB)", "checksum = ''"]
)  # fmt: skip
def test_what_was_changed_on_disk_is_not_believed(database: Database, change: str) -> None:
    store = ResponseStore(database)
    put(store, "a", None)
    database.connection.execute(f"UPDATE responses SET {change}")
    for call in (store.get, store.history):
        with pytest.raises(StoreError, match="response a: it was changed on disk"):
            call("a")


def test_a_chain_has_a_longest_length_and_says_so(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_CHAIN", 3)
    store = ResponseStore(database)
    previous = None
    for name in "abcd":
        put(store, name, previous)
        previous = name
    assert len(store.history("c")) == 6
    with pytest.raises(StoreError, match="over 3 responses"):
        store.history("d")
