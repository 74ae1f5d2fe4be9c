"""Sessions in any order of use, against lists of messages in plain Python."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from akashic_daemon.store.check import check
from akashic_daemon.store.database import open_database
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.trajectory.message import Message, Role, chain_all
from akashic_daemon.types import ChainDigest, SystemClock

History = tuple[Message, ...]
# Few different messages, so that histories often share their beginnings.
MESSAGES = st.builds(
    Message,
    role=st.sampled_from([Role.USER, Role.ASSISTANT]),
    content=st.sampled_from(["a", "b", "\u00e9\x00", "\ud800"]),
    thinking=st.sampled_from([None, "hm"]),
)
HISTORIES = st.lists(MESSAGES, max_size=5)
SHARE = st.integers(0, 100)


class Sessions(RuleBasedStateMachine):
    """`now` is what each session holds, `past` what it has left behind."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ak-"))
        self.now: dict[str, History] = {}
        self.past: dict[str, set[History]] = {}
        self.sampled: dict[tuple[ChainDigest | None, str], list[int]] = {}
        self.open()

    def open(self) -> None:
        self.database = open_database(self.folder / "a.db")
        # What a test kills by itself is a process, not the machine: no need to wait for the disk.
        self.database.connection.execute("PRAGMA synchronous=OFF")
        self.store = SessionStore(self.database, SystemClock())

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)

    def reached(self) -> set[ChainDigest]:
        histories = [*self.now.values(), *(h for past in self.past.values() for h in past)]
        return {c for h in histories for c in chain_all(h)}

    def move(self, name: str, history: History) -> None:
        old = self.now[name]
        if history[: len(old)] != old:
            self.past[name].add(old)
        self.now[name] = history

    @rule(target=names)
    def create(self) -> str:
        name = self.store.create(None, origin="test").name
        self.now[name], self.past[name] = (), set()
        return name

    @rule(name=names, messages=HISTORIES)
    def append(self, name: str, messages: list[Message]) -> None:
        before = self.reached()
        new = self.store.append(name, messages)
        self.now[name] += tuple(messages)
        assert new == len(self.reached()) - len(before)

    @rule(name=names, messages=HISTORIES, keep=SHARE)
    def edit(self, name: str, messages: list[Message], keep: int) -> None:
        history = (*self.now[name][: len(self.now[name]) * keep // 100], *messages)
        before = self.reached()
        new = self.store.set_history(name, history)
        self.move(name, history)
        assert new == len(self.reached()) - len(before)

    @rule(name=names, keep=SHARE)
    def rewind(self, name: str, keep: int) -> None:
        count = len(self.now[name]) * keep // 100
        self.store.rewind(name, count)
        self.move(name, self.now[name][:count])

    @rule(name=names, other=names)
    def go_where_another_is(self, name: str, other: str) -> None:
        self.store.set_head(name, self.store.head(other))
        self.move(name, self.now[other])

    @rule(target=names, name=names, keep=SHARE)
    def fork(self, name: str, keep: int) -> str:
        count = len(self.now[name]) * keep // 100
        fork = self.store.fork(name, None, count).name
        self.now[fork], self.past[fork] = self.now[name][:count], set()
        return fork

    @rule(target=names, name=consumes(names))
    def rename(self, name: str) -> str:
        new_name = f"{name}x"
        self.store.rename(name, new_name)
        self.now[new_name], self.past[new_name] = self.now.pop(name), self.past.pop(name)
        return new_name

    @rule(target=names, name=consumes(names))
    def remove(self, name: str) -> object:
        before = self.reached()
        history = self.now.pop(name)
        self.past.pop(name)
        after = self.reached()
        assert self.store.remove(name) == (len(before - after), len(set(chain_all(history)) & after))
        return multiple()

    @rule(name=names, ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3))
    def sample_the_last_answer(self, name: str, ids: list[int]) -> None:
        history = self.now[name]
        if history and history[-1].role is Role.ASSISTANT:
            parent = chain_all(history)[-2] if len(history) > 1 else None
            self.store.remember_sampled(parent, history[-1].content, ids)
            self.sampled[parent, history[-1].content] = ids

    @rule()
    def reopen(self) -> None:
        self.database.close()
        self.open()

    @rule(name=names, messages=HISTORIES)
    def a_history_is_recognised_as_far_as_it_is_stored(self, name: str, messages: list[Message]) -> None:
        history = (*self.now[name], *messages)
        chains, reached = chain_all(history), self.reached()
        index, _, heads = self.store.find_by_chain(chains)
        assert index == max((i for i, c in enumerate(chains) if c in reached), default=-1)
        want = {n for n, h in self.now.items() if h and h == history[: index + 1]}
        assert set(heads) == want

    @invariant()
    def the_store_is_sound_and_holds_what_is_reached_and_nothing_else(self) -> None:
        assert check(self.database) == []
        rows = self.database.connection.execute("SELECT chain FROM messages")
        assert {r[0] for r in rows} == self.reached()

    @invariant()
    def each_session_holds_its_messages(self) -> None:
        assert {r.name: r.message_count for r in self.store.all()} == {n: len(h) for n, h in self.now.items()}
        for name, history in self.now.items():
            assert tuple(m.message for m in self.store.messages(name)) == history

    @invariant()
    def ids_live_as_long_as_an_answer_with_that_text(self) -> None:
        said = set()
        for history in [*self.now.values(), *(h for past in self.past.values() for h in past)]:
            for parent, message in zip([None, *chain_all(history)], history, strict=False):
                if message.role is Role.ASSISTANT:
                    said.add((parent, message.content))
        self.sampled = {key: ids for key, ids in self.sampled.items() if key in said}
        for (parent, text), ids in self.sampled.items():
            assert self.store.recall_sampled(parent, text) == ids
        kept = self.database.connection.execute("SELECT count(*) FROM sampled").fetchone()[0]
        assert kept == len(self.sampled)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
