"""Traces on disk are read as they were written, bounded, and go with their session."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from akashic_daemon.errors import NotFound, StoreError
from akashic_daemon.program.align import Trace, entries_of
from akashic_daemon.program.path import Drop, Insert, Path, PlacedOp, Repos, Shift
from akashic_daemon.sessions.book import SessionBook
from akashic_daemon.sessions.traces import Known, Traces, runs_of
from akashic_daemon.store import book, traces
from akashic_daemon.store.book import BookStore, Unwritten
from akashic_daemon.store.check import check
from akashic_daemon.store.database import Database, open_database
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.store.traces import TraceStore
from akashic_daemon.trajectory.message import Message, Role, ToolCall, chain_all
from akashic_daemon.types import ChainDigest, SystemClock

CALL = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("1", "f", '{"a": 1}'),))
TOLD = (Message(Role.USER, "one"), CALL, Message(Role.TOOL, "two \ud800", tool_call_id="1"))


@pytest.fixture
def database(tmp_path: FilePath) -> Iterator[Database]:
    database = open_database(tmp_path / "a.db")
    yield database
    database.close()


def known(session: str = "s", fingerprint: str = "model1:a", *, tokens: int = 30) -> Known:
    chance = random.Random(tokens)
    ids = array("i", [chance.choice((0, 1, 255, 70_000, 2**31 - 1)) for _ in range(tokens)])
    owners = array("i", [i * 3 // tokens for i in range(tokens)])
    ops = (
        PlacedOp(10, Drop(((2, 4), (6, 9)))),
        PlacedOp(12, Repos(3, 2)),
        PlacedOp(15, Insert(2, 2)),
        PlacedOp(18, Shift(9, 13, 3)),
    )
    path = Path(ids, ops if tokens == 30 else ())
    shown = (TOLD[0], CALL, replace(TOLD[2], content="older"))
    return Known(
        session, "m", fingerprint, Trace(path, entries_of(path, owners), open_tail=True), shown,
        ({"type": "function", "function": {"name": "f"}},), frozenset({1, 2}), runs_of(owners), "template1:x",
    )  # fmt: skip


def put(database: Database, *several: Known) -> None:
    store = SessionStore(database, SystemClock())
    for one in several:
        assert one.session is not None
        store.ensure(one.session, origin="test")
        store.set_history(one.session, [*TOLD, Message(Role.ASSISTANT, "answer")])
        BookStore(database).write(one.session, Unwritten(traces={one.fingerprint: (one, {"kv_type": "f16"})}))


def kept(database: Database) -> list[tuple[str, str]]:
    store = TraceStore(database)
    found = [store.get(row) for row, _ in store.newest()]
    return [(one.session or "", one.fingerprint) for one in found if one is not None]


def test_a_trace_is_read_as_it_was_written(database: Database) -> None:
    put(database, known())
    store = TraceStore(database)
    [(row, session)] = store.newest()
    assert session == "s"
    assert store.get(row) == known()
    assert store.parts() == {"model1:a": {"kv_type": "f16"}}
    assert check(database) == []
    assert store.get(row + 1) is None


def test_the_sessions_own_text_is_not_stored_again_and_what_it_says_otherwise_is(database: Database) -> None:
    long = Message(Role.USER, " ".join(map(str, random.Random(1).sample(range(10**9), 4000))))
    one = replace(known(tokens=3), messages=(long, CALL))
    store = SessionStore(database, SystemClock())
    store.ensure("s", origin="test")
    store.set_history("s", [long, CALL])
    BookStore(database).write("s", Unwritten(traces={one.fingerprint: (one, {})}))
    size = "SELECT length(body) FROM traces"
    assert database.connection.execute(size).fetchone()[0] < 1000
    other = replace(one, messages=(replace(long, content=long.content + "!"), CALL))
    BookStore(database).write("s", Unwritten(traces={one.fingerprint: (other, {})}))
    assert database.connection.execute(size).fetchone()[0] > 10_000
    [(row, _)] = TraceStore(database).newest()
    assert TraceStore(database).get(row) == other


def test_every_flipped_byte_of_a_trace_is_found(database: Database) -> None:
    put(database, known())
    [(row, _)] = TraceStore(database).newest()
    body = database.connection.execute("SELECT body FROM traces").fetchone()[0]
    for place in range(len(body)):
        flipped = body[:place] + bytes([body[place] ^ 4]) + body[place + 1 :]
        database.connection.execute("UPDATE traces SET body = ?", (flipped,))
        with pytest.raises(StoreError, match="session 's' computed last: it was changed on disk"):
            TraceStore(database).get(row)
    assert [f.subject for f in check(database)] == ["trace of session s"]


def test_a_session_keeps_its_newest_traces_of_few_fingerprints_in_memory_as_on_disk(database: Database) -> None:
    memory = Traces()
    for number in (*range(6), 3):
        one = known(fingerprint=f"model1:{number}")
        memory.remember(one)
        put(database, one)
    names = [("s", f"model1:{n}") for n in (3, 5, 4, 2)]
    assert kept(database) == names
    assert [one.fingerprint for one in memory.all_of("s")] == [f for _, f in reversed(names)]


def test_the_oldest_traces_go_when_all_have_too_many_tokens(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MOST_TOKENS", 100)
    put(database, *(known(f"s{n}", tokens=40) for n in range(5)), known("s1", tokens=20))
    assert [s for s, _ in kept(database)] == ["s1", "s4", "s3"]
    put(database, known("huge", tokens=1000))
    assert [s for s, _ in kept(database)] == ["huge"]


def test_traces_go_with_their_session_and_stay_with_its_fork(database: Database) -> None:
    put(database, known("a"), known("b"))
    store = SessionStore(database, SystemClock())
    store.rename("b", "c")
    store.remove("a")
    assert kept(database) == [("c", "model1:a")]
    with pytest.raises(NotFound):
        BookStore(database).write("a", Unwritten(traces={"model1:a": (known("a"), {})}))
    assert check(database) == []


def test_only_the_newest_ends_of_requests_are_kept_and_belong_to_who_ended_there_last(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "KEPT_ENDS", 3)
    store = BookStore(database)
    for session in ("a", "b"):
        SessionStore(database, SystemClock()).ensure(session, origin="test")
    ends = [ChainDigest(f"chain1:{n}") for n in range(5)]
    store.write("a", Unwritten(ends=ends))
    store.write("b", Unwritten(ends=[ends[3]], places={"op": [1, 2]}))
    assert store.ends() == [(ends[2], "a"), (ends[4], "a"), (ends[3], "b")]
    assert store.places() == [("b", {"op": [1, 2]})]
    SessionStore(database, SystemClock()).remove("b")
    assert (store.ends(), store.places()) == ([(ends[2], "a"), (ends[4], "a")], [])


class Inline(StoreThread):
    """Runs at once."""

    async def run(self, function):  # type: ignore[no-untyped-def]
        """Run it."""
        return function()


async def recalled(store: SessionStore) -> list[object]:
    """Recall an answer after a history that was edited since, in a new run."""
    thread = Inline()
    fresh = SessionBook(store, thread)
    history = [Message(Role.USER, "edited"), Message(Role.ASSISTANT, "answer"), Message(Role.ASSISTANT, "never")]
    await fresh.load_sampled(history)
    thread.close()
    chains = chain_all(history)
    return [fresh.recall(chains[0], "answer"), fresh.recall(chains[1], "never")]


def test_an_answer_after_an_edited_history_is_what_it_was_sampled_as_last(database: Database) -> None:
    import asyncio

    store = SessionStore(database, SystemClock())
    for number, question in enumerate(("one", "two", "three", "two")):
        store.remember_sampled(chain_all([Message(Role.USER, question)])[0], "answer", [number, 5])
    assert asyncio.run(recalled(store)) == [[3, 5], None]


def test_places_that_were_changed_on_disk_are_told_and_the_others_are_read(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    for session in ("a", "b"):
        SessionStore(database, SystemClock()).ensure(session, origin="test")
        BookStore(database).write(session, Unwritten(places={f"replace by \ud800 in {session}": [1]}))
    whole = database.connection.execute("SELECT json FROM places WHERE session_id = 1").fetchone()[0]
    for broken in (whole[:-3] + "2]}", "", "{}", b"\xff", whole[1:]):
        database.connection.execute("UPDATE places SET json = ? WHERE session_id = 1", (broken,))
        assert BookStore(database).places() == [("b", {"replace by \ud800 in b": [1]})]
        assert [f.subject for f in check(database)] == ["places of session a"]
        assert "session a took effect was changed on disk" in caplog.messages[-1]


def test_a_broken_table_of_fingerprints_costs_only_the_words(database: Database) -> None:
    put(database, known())
    database.connection.execute("UPDATE fingerprints SET parts = '{'")
    with pytest.raises(StoreError, match="made of: it was changed on disk"):
        TraceStore(database).parts()
    assert kept(database) == [("s", "model1:a")]
