"""What sessions promise one by one; the stateful test tries them in all orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from akashic_daemon.errors import BadRequest, Conflict, NotFound, StoreError
from akashic_daemon.sessions.book import SessionBook
from akashic_daemon.store.check import check
from akashic_daemon.store.database import Database, open_database
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.trajectory.message import Message, Role, ToolCall, chain_all
from akashic_daemon.types import ChainDigest


class TickingClock:
    """Each look is a second later."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        self.at_s += 1
        return self.at_s

    def monotonic_s(self) -> float:
        return self.now_s()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_database(tmp_path / "a.db")
    yield database
    assert check(database) == []
    database.close()


@pytest.fixture
def store(database: Database) -> SessionStore:
    return SessionStore(database, TickingClock())


def user(*texts: str) -> list[Message]:
    return [Message(Role.USER, t) for t in texts]


def texts(store: SessionStore, name: str) -> list[str]:
    return [m.message.content for m in store.messages(name)]


def test_a_message_comes_back_field_by_field_lone_surrogates_and_zeros_included(store: SessionStore) -> None:
    message = Message(
        Role.ASSISTANT, "half \ud83d of\x00 \ud83d\ude00 it \u00e9", "thought \udc00", (ToolCall("1", "run", '{"a" : 1}'),),
        None, "name", True, 12.5, True, "src:1",
    )  # fmt: skip
    store.create("s", origin="test \ud800", title="t \ud800")
    store.append("s", [message, *user("\ud800 asks")])
    stored = store.messages("s")
    assert stored[0].message == message
    assert [m.chain for m in stored] == chain_all([message, *user("\ud800 asks")])
    assert [m.index for m in stored] == [0, 1]
    assert store.head("s") == stored[1].chain


def test_sessions_without_a_name_get_different_ones_that_say_where_they_are_from(store: SessionStore) -> None:
    names = {store.create(None, origin="import:claude-code").name for _ in range(20)}
    assert len(names) == 20
    assert all(n.startswith("import-") for n in names)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 129, "\ud800", "a\n", "\u00e9"])
def test_a_name_outside_the_rule_is_refused_and_never_found(store: SessionStore, name: str) -> None:
    store.create("good", origin="test")
    with pytest.raises(BadRequest):
        store.create(name, origin="test")
    with pytest.raises(BadRequest):
        store.ensure(name, origin="test")
    with pytest.raises(BadRequest):
        store.rename("good", name)
    with pytest.raises(NotFound):
        store.get(name)


def test_an_unknown_session_is_answered_with_the_nearest_name(store: SessionStore) -> None:
    store.create("refactor-parser", origin="test")
    calls: list[Callable[[str], object]] = [
        store.get, store.messages, store.remove, store.touch, store.head,
        lambda n: store.append(n, user("x")), lambda n: store.set_history(n, user("x")), lambda n: store.rewind(n, 0),
        lambda n: store.fork(n, None, None), lambda n: store.rename(n, "other"), lambda n: store.set_head(n, None),
        lambda n: store.set_window_start(n, 0),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(NotFound) as caught:
            call("refactor-parsr")
        assert "refactor-parser" in (caught.value.hint or "")
    assert store.count() == 1


def test_taken_names_are_refused_and_change_nothing(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.create("b", origin="test")
    store.append("a", user("1"))
    calls: list[Callable[[], object]] = [
        lambda: store.create("b", origin="x"),
        lambda: store.rename("a", "b"),
        lambda: store.fork("a", "b", 1),
    ]
    for call in calls:
        with pytest.raises(Conflict):
            call()
    assert sorted(r.name for r in store.all()) == ["a", "b"]


def test_a_renamed_session_keeps_its_history_and_its_forks_know_it(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.append("a", user("1"))
    store.fork("a", "child", None)
    store.rename("a", "b")
    assert texts(store, "b") == ["1"]
    assert store.get("child").forked_from == "b"
    with pytest.raises(NotFound):
        store.get("a")


def test_the_newest_used_session_is_listed_first(store: SessionStore) -> None:
    for name in ("a", "b", "c"):
        store.create(name, origin="test")
    store.touch("a")
    store.append("b", user("1"))
    assert [r.name for r in store.all()] == ["b", "a", "c"]


def test_listing_takes_one_query_however_many_sessions(store: SessionStore, database: Database) -> None:
    for i in range(20):
        store.create(f"s{i}", origin="test")
        store.append(f"s{i}", user(*map(str, range(i))))
    asked: list[str] = []
    database.connection.set_trace_callback(asked.append)
    rows = store.all()
    database.connection.set_trace_callback(None)
    assert len(asked) == 1
    assert {r.name: r.message_count for r in rows} == {f"s{i}": i for i in range(20)}


def test_the_first_question_becomes_the_title_of_a_session_without_one(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.append("a", [Message(Role.SYSTEM, "be brief"), *user("  " + "why? " * 40)])
    store.append("a", user("another"))
    assert store.get("a").title == ("why? " * 16).strip()


def test_sessions_that_begin_alike_store_it_once(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.create("b", origin="test")
    assert store.append("a", user("1", "2", "3")) == 3
    assert store.append("b", user("1", "2", "4")) == 1
    assert store.remove("a") == (1, 2)
    assert texts(store, "b") == ["1", "2", "4"]
    assert store.remove("b") == (3, 0)


def test_append_is_all_or_nothing(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.append("a", user("1"))
    bad = Message(Role.USER, "3", event_time_s=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        store.append("a", [*user("2"), bad])
    assert texts(store, "a") == ["1"]
    assert store.append("a", user("2")) == 1


@pytest.mark.parametrize(("at", "want"), [(None, ["1", "2"]), (0, []), (1, ["1"]), (2, ["1", "2"])])
def test_a_fork_holds_the_first_messages_and_goes_its_own_way(
    store: SessionStore, at: int | None, want: list[str]
) -> None:
    store.create("a", origin="test")
    store.append("a", user("1", "2"))
    row = store.fork("a", "b", at)
    assert (row.forked_from, row.message_count) == ("a", len(want))
    store.append("b", user("own"))
    assert texts(store, "b") == [*want, "own"]
    assert texts(store, "a") == ["1", "2"]


def test_counts_out_of_range_are_refused(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.append("a", user("1", "2"))
    for count in (-1, 3):
        with pytest.raises(BadRequest):
            store.fork("a", "b", count)
        with pytest.raises(BadRequest):
            store.rewind("a", count)
        with pytest.raises(BadRequest):
            store.set_window_start("a", count)
    assert [r.name for r in store.all()] == ["a"]


def test_what_was_rewound_can_be_gone_back_to_until_the_session_is_removed(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.append("a", user("1", "2", "3"))
    end = store.head("a")
    store.rewind("a", 1)
    assert texts(store, "a") == ["1"]
    store.set_head("a", end)
    assert texts(store, "a") == ["1", "2", "3"]
    store.set_head("a", None)
    assert texts(store, "a") == []
    assert store.remove("a") == (3, 0)
    store.create("a", origin="test")
    with pytest.raises(NotFound):
        store.set_head("a", end)


def test_a_long_branch_that_was_left_goes_with_its_session(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.append("a", user(*map(str, range(3000))))
    store.rewind("a", 2)
    store.set_history("a", user("another", "story"))
    assert store.remove("a") == (3002, 0)


def test_a_window_that_began_behind_the_new_end_begins_anew(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.append("a", user("1", "2", "3", "4"))
    store.set_window_start("a", 2)
    assert store.fork("a", "b", 2).window_start_message is None
    store.rewind("a", 3)
    assert store.get("a").window_start_message == 2
    store.set_window_start("a", 3)
    assert store.get("a").window_start_message == 3, "it may begin at the end: before the turn that comes"
    store.rewind("a", 2)
    assert store.get("a").window_start_message is None


def test_the_longest_stored_beginning_is_found_with_the_sessions_that_end_there(
    store: SessionStore, database: Database
) -> None:
    store.create("a", origin="test")
    history = user(*map(str, range(1000)))
    store.append("a", history)
    store.fork("a", "b", 300)
    chains = chain_all(history)
    assert store.find_by_chain(chains) == (999, store.messages("a")[-1].id, ["a"])
    assert store.find_by_chain(chains[:300]) == (299, store.messages("b")[-1].id, ["b"])
    assert store.find_by_chain([])[0] == -1
    asked: list[str] = []
    database.connection.set_trace_callback(asked.append)
    index, _, names = store.find_by_chain(chain_all([*history[:700], *user("other"), *history[700:]]))
    database.connection.set_trace_callback(None)
    assert (index, names) == (699, [])
    assert len(asked) < 20
    assert store.find_by_chain([ChainDigest("chain1:no")]) == (-1, None, [])


def answer(store: SessionStore, name: str, text: str, ids: list[int]) -> ChainDigest | None:
    parent = store.head(name)
    store.append(name, [Message(Role.ASSISTANT, text)])
    store.remember_sampled(parent, text, ids)
    return parent


def test_sampled_ids_come_back_exactly_and_belong_to_their_place(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.append("a", user("q"))
    parent = answer(store, "a", "yes \ud800", [0, 1, 2**31 - 1])
    assert store.recall_sampled(parent, "yes \ud800") == [0, 1, 2**31 - 1]
    assert store.recall_sampled(parent, "yes") is None
    assert store.recall_sampled(None, "yes \ud800") is None
    assert [m.token_ids for m in store.messages("a")] == [None, (0, 1, 2**31 - 1)]


def test_a_text_that_was_not_sampled_as_it_stands_has_no_ids_rather_than_none_of_them(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.append("a", user("q"))
    parent = answer(store, "a", "yes", [1])
    store.remember_sampled(parent, "yes", [])
    assert store.recall_sampled(parent, "yes") is None


async def _recorded(store: SessionStore, sampled: list[int]) -> object:
    class Inline(StoreThread):
        async def run(self, function):  # type: ignore[no-untyped-def]
            return function()

    thread = Inline()
    book = SessionBook(store, thread)
    await book.record("s", user("q"), Message(Role.ASSISTANT, "yes"), sampled, origin="test", since_removals=0)
    thread.close()
    return book.recall(chain_all(user("q"))[-1], "yes")


@pytest.mark.parametrize(("sampled", "want"), [([], None), ([4], [4])])
def test_the_book_recalls_no_empty_answer(store: SessionStore, sampled: list[int], want: object) -> None:
    import asyncio

    assert asyncio.run(_recorded(store, sampled)) == want


def test_sampled_ids_go_with_the_answer_and_stay_with_one_that_others_hold(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.append("a", user("q"))
    store.fork("a", "b", None)
    shared = answer(store, "a", "mine", [1])
    answer(store, "b", "theirs", [2])
    assert store.remove("a") == (1, 1)
    assert store.recall_sampled(shared, "mine") is None
    assert store.recall_sampled(shared, "theirs") == [2]


def test_sampled_ids_stay_while_a_message_beside_says_the_same(store: SessionStore) -> None:
    store.create("a", origin="test")
    store.append("a", user("q"))
    store.fork("a", "b", None)
    parent = answer(store, "a", "same", [1])
    store.append("b", [Message(Role.ASSISTANT, "same", name="somebody else")])
    store.remove("a")
    assert store.recall_sampled(parent, "same") == [1]
    store.remove("b")
    assert store.recall_sampled(parent, "same") is None


def test_ids_of_an_answer_to_nothing_go_with_it(store: SessionStore) -> None:
    store.create("a", origin="test")
    assert answer(store, "a", "unasked", [7]) is None
    store.remove("a")
    assert store.recall_sampled(None, "unasked") is None


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE messages SET json = replace(json, 'two', 'tow') WHERE depth = 1",
        "UPDATE messages SET json = '{' WHERE depth = 1",
        "UPDATE messages SET digest = 'msg1:0' WHERE depth = 1",
        "UPDATE messages SET chain = 'chain1:0' WHERE depth = 1",
        "UPDATE messages SET parent_id = 1 WHERE depth = 2",
        "UPDATE messages SET depth = 7 WHERE depth = 2",
    ],
)
def test_a_row_that_was_changed_on_disk_is_never_returned(tmp_path: Path, damage: str) -> None:
    database = open_database(tmp_path / "b.db")
    store = SessionStore(database, TickingClock())
    store.create("a", origin="test")
    store.append("a", user("one", "two", "three"))
    database.connection.execute(damage)
    with pytest.raises(StoreError):
        store.messages("a")
    assert check(database) != []
    store.remove("a")
    assert store.count() == 0
    database.close()
