"""Sessions as the requests see them: which stored trajectory a request extends, and what is remembered of it.

Sits between the service and the store. Everything that reads or writes SQLite goes through the store thread; the token
path only touches the small memories kept here, which are read at the start and written when nobody waits for it.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from akashic_daemon.program.message_ops import MessageOp, ReplaceMessage, ReplaceSelected
from akashic_daemon.program.wire import to_stored
from akashic_daemon.sessions.traces import Known, same_call
from akashic_daemon.store.book import KEPT_ENDS, BookStore, Places, Unwritten
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.trajectory.message import Message, ToolCall, chain_all
from akashic_daemon.types import ChainDigest

_REMEMBERED = KEPT_ENDS
_MOST_ALIKE = 8
"""Calls that are remembered under one id; some clients number theirs anew in each conversation."""
K = TypeVar("K")
V = TypeVar("V")


class SessionBook:
    """Knows, for requests to come, the sessions, operations and sampled answers of those before."""

    def __init__(self, store: SessionStore, thread: StoreThread) -> None:
        self._store = store
        self._thread = thread
        self._kept = BookStore(store.database)
        self._session_at: OrderedDict[ChainDigest, str] = OrderedDict()
        self._places: OrderedDict[str, Places] = OrderedDict()
        self._changed: set[str] = set()
        """Sessions whose places aren't stored as they are now."""
        self._unwritten: dict[str, Unwritten] = {}
        self._handing_over = threading.Lock()
        self._sampled: OrderedDict[tuple[ChainDigest | None, str], Sequence[int] | None] = OrderedDict()
        self._sampled_text: OrderedDict[str, Sequence[int]] = OrderedDict()
        self._calls: OrderedDict[str, tuple[ToolCall, ...]] = OrderedDict()
        """Calls as they were said first, by id; none for an id that isn't stored."""
        self._removals = 0
        self._removed_at: OrderedDict[str, int] = OrderedDict()
        """The number of a session's last removal. Touched on the store thread only."""

    async def load(self) -> None:
        """Read what an earlier run kept. Raises StoreError."""
        self._session_at.update(await self._thread.run(self._kept.ends))
        self._places.update(await self._thread.run(self._kept.places))

    async def find(self, messages: Sequence[Message]) -> str | None:
        """Return the session that a stateless request goes on with, None when it begins a new one."""
        chains = chain_all(messages)
        for chain in reversed(chains[-64:]):
            if chain in self._session_at:
                return self._session_at[chain]
        _, _, heads = await self._thread.run(lambda: self._store.find_by_chain(chains))
        return heads[0] if heads else None

    def session_at(self, ends: Sequence[ChainDigest]) -> str | None:
        """Return the session one of whose requests had the last of these ends that any had."""
        return next((self._session_at[end] for end in reversed(ends) if end in self._session_at), None)

    def note_end(self, session: str, end: ChainDigest) -> None:
        """Know a stored session by another digest of where a request of it ended."""
        _remember(self._session_at, end, session)
        self._write_later(session, end=end)

    @staticmethod
    def new_name() -> str:
        """Return a name for a session that nobody named."""
        return f"api-{secrets.token_hex(4)}"

    def with_places(self, session: str | None, ops: Sequence[MessageOp]) -> list[MessageOp]:
        """Return the operations; one without a place also takes effect where it did in the session's earlier requests.

        So a client may send the same cumulative program with each request: the path stays the same and only grows.
        """
        places = self._places.get(session, {}) if session is not None else {}
        out: list[MessageOp] = []
        for op in ops:
            if op.at is not None:
                out.append(op)
                continue
            earlier = places.get(_name(op), [])
            once = isinstance(op, ReplaceMessage | ReplaceSelected) and bool(earlier)
            out.extend(replace(op, at=at) for at in earlier)
            if not once:
                out.append(op)
        return out

    def remember_places(self, session: str | None, ops: Sequence[MessageOp], messages: Sequence[Message]) -> None:
        """Remember that operations without a place took effect at the end of these messages."""
        if session is None or not any(op.at is None for op in ops):
            return
        places = self._places.get(session, {})
        for op in ops:
            at = places.setdefault(_name(op), [])
            if op.at is None and len(messages) not in at:
                at.append(len(messages))
        _remember(self._places, session, places)
        self._changed.add(session)

    def take_over(self, old: str, new: str, message_count: int) -> None:
        """Let a session's operations stand where another's do within its first messages."""
        places = {
            name: within
            for name, at in self._places.get(old, {}).items()
            if (within := [a for a in at if a <= message_count])
        }
        if places:
            _remember(self._places, new, places)
            self._changed.add(new)
            self._write_later(new)

    def places_of(self, session: str) -> Places:
        """Return where a session's operations without a place took effect."""
        return {name: list(at) for name, at in self._places.get(session, {}).items()}

    def adopt(
        self, session: str, places: Places, sampled: Sequence[tuple[ChainDigest | None, str, Sequence[int]]]
    ) -> None:
        """Know of a session from another home what is remembered of one whose last request was answered here.

        sampled: (parent, said text, ids) of its answers, stored already.
        """
        if places:
            _remember(self._places, session, places)
            self._changed.add(session)
            self._write_later(session)
        for parent, text, ids in sampled:
            _remember(self._sampled, (parent, text), ids)
            _remember(self._sampled_text, text, ids)

    def keep_trace(self, known: Known, parts: Mapping[str, str]) -> None:
        """Let a session's trace, and what else is to be kept of it, be written when nobody waits."""
        assert known.session is not None
        self._write_later(known.session, trace=(known, parts))

    def _write_later(
        self, session: str, *, end: ChainDigest | None = None, trace: tuple[Known, Mapping[str, str]] | None = None
    ) -> None:
        with self._handing_over:
            unwritten = self._unwritten.setdefault(session, Unwritten())
            if end is not None:
                unwritten.ends.append(end)
            if trace is not None:
                unwritten.traces[trace[0].fingerprint] = trace
            if session in self._changed:
                self._changed.discard(session)
                unwritten.places = {name: list(at) for name, at in self._places.get(session, {}).items()}
        self._thread.later(session, lambda: self._write(session))

    def _write(self, session: str) -> bool:
        """Write what waits of a session, on the store thread; tell if anything did."""
        with self._handing_over:
            unwritten = self._unwritten.pop(session, None)
        if unwritten is None:
            return False
        self._kept.write(session, unwritten)
        return True

    async def as_said(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages with the arguments of known calls in the bytes in which they were sampled, or sent first.

        Clients parse arguments and write them anew; to the model, and to the cache, other bytes are another text.
        """
        ids = [c.id for m in messages for c in m.tool_calls if c.id]
        unknown = [i for i in dict.fromkeys(ids) if i not in self._calls]
        if unknown:
            for call_id, calls in (await self._thread.run(lambda: self._store.recall_calls(unknown))).items():
                _remember(self._calls, call_id, calls)
        return tuple(
            replace(m, tool_calls=tuple(map(self._said_first, m.tool_calls))) if m.tool_calls else m for m in messages
        )

    def _said_first(self, call: ToolCall) -> ToolCall:
        known = self._calls.get(call.id, ())
        return next((k for k in known if k == call or same_call(k, call)), call)

    def _keep_calls(self, messages: Sequence[Message]) -> None:
        for call in (c for m in messages for c in m.tool_calls if c.id):
            known = self._calls.get(call.id, ())
            if call not in known:
                _remember(self._calls, call.id, (*known, call)[:_MOST_ALIKE])

    async def load_sampled(self, messages: Sequence[Message]) -> None:
        """Fetch the sampled tokens of assistant messages, so that `recall` answers without waiting."""
        wanted = [
            (parent, m.said)
            for parent, m in zip([None, *chain_all(messages)], messages, strict=False)
            if m.role == "assistant" and m.said and (parent, m.said) not in self._sampled
        ]
        if wanted:
            found = await self._thread.run(lambda: [self._store.recall_sampled(p, t) for p, t in wanted])
            for key, ids in zip(wanted, found, strict=True):
                _remember(self._sampled, key, ids)
                if ids:
                    _remember(self._sampled_text, key[1], ids)
            await self._load_texts([text for _, text in wanted if text not in self._sampled_text])

    async def _load_texts(self, texts: Sequence[str]) -> None:
        """Fetch what texts were sampled as after other histories."""
        if texts:
            found = await self._thread.run(lambda: [self._store.recall_text(text) for text in texts])
            for text, ids in zip(texts, found, strict=True):
                if ids and text not in self._sampled_text:
                    _remember(self._sampled_text, text, ids)

    def recall(self, parent: ChainDigest | None, text: str) -> Sequence[int] | None:
        """Return the ids an assistant message that says `text` was sampled as; None when it wasn't sampled here.

        The same text after another history (an edited one) was sampled as the same ids: they spell it as well.
        """
        found = self._sampled.get((parent, text))
        return found if found is not None else self._sampled_text.get(text)

    @property
    def removals(self) -> int:
        """How many sessions were removed so far: asked when a request begins, for `record` at its end."""
        return self._removals

    def removed(self, session: str) -> None:
        """Let no answer that runs bring a removed session back. Call it on the store thread, where `record` looks."""
        self._removals += 1
        _remember(self._removed_at, session, self._removals)

    async def record(
        self,
        session: str,
        messages: Sequence[Message],
        answer: Message | None,
        sampled: Sequence[int],
        *,
        origin: str,
        since_removals: int,
    ) -> bool:
        """Store a request's history and its answer as the session's trajectory.

        since_removals: `removals` when the request began. Stores nothing and returns False when its session was removed
        since.
        """
        chains = chain_all(messages)
        parent = chains[-1] if chains else None

        def work() -> bool:
            if self._removed_at.get(session, 0) > since_removals:
                return False
            self._store.ensure(session, origin=origin)
            self._store.set_history(session, [*messages, *([answer] if answer is not None else [])])
            if answer is not None and answer.said:
                self._store.remember_sampled(parent, answer.said, list(sampled))
            return True

        if not await self._thread.run(work):
            return False
        if parent is not None:
            _remember(self._session_at, parent, session)
            self._write_later(session, end=parent)
        self._keep_calls([*messages, *([answer] if answer is not None else [])])
        if answer is not None and answer.said:
            _remember(self._sampled, (parent, answer.said), list(sampled) or None)
            if sampled:
                _remember(self._sampled_text, answer.said, list(sampled))
        return True

    def forget(self, session: str) -> None:
        """Drop what is remembered of a removed session, sampled text included."""
        self._places.pop(session, None)
        self._changed.discard(session)
        self._unwritten.pop(session, None)
        for chain in [c for c, s in self._session_at.items() if s == session]:
            del self._session_at[chain]
        self._sampled.clear()
        self._sampled_text.clear()
        self._calls.clear()


def _name(op: MessageOp) -> str:
    """Return what an operation does, without its place."""
    return json.dumps(to_stored(replace(op, at=None)), sort_keys=True)


def _remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > _REMEMBERED:
        memory.popitem(last=False)
