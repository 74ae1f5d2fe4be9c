"""Sessions as the requests see them: which stored trajectory a request extends, and what is remembered of it.

Sits between the service and the store. Everything that reads or writes SQLite goes through the store thread; the token
path only touches the small memories kept here.
"""

from __future__ import annotations

import secrets
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.trajectory.message import Message, chain_all
from akashic_daemon.types import ChainDigest

_REMEMBERED = 4096
K = TypeVar("K")
V = TypeVar("V")


class SessionBook:
    """Knows, for the requests of this run, their session, last prompt and sampled answers."""

    def __init__(self, store: SessionStore, thread: StoreThread) -> None:
        self._store = store
        self._thread = thread
        self._session_at: OrderedDict[ChainDigest, str] = OrderedDict()
        self._last_tokens: OrderedDict[str, array[int]] = OrderedDict()
        self._sampled: OrderedDict[tuple[ChainDigest | None, str], Sequence[int] | None] = OrderedDict()

    async def find_or_name(self, messages: Sequence[Message]) -> str:
        """Return the session that a stateless request goes on with, or a new name for it."""
        chains = chain_all(messages)
        for chain in reversed(chains[-64:]):
            if chain in self._session_at:
                return self._session_at[chain]
        _, _, heads = await self._thread.run(lambda: self._store.find_by_chain(chains))
        return heads[0] if heads else f"api-{secrets.token_hex(4)}"

    def last_tokens(self, session: str | None) -> array[int] | None:
        """Return the last prompt and answer of a session, None when it is new in this run."""
        return None if session is None else self._last_tokens.get(session)

    def remember_tokens(self, session: str | None, tokens: array[int]) -> None:
        """Keep a session's prompt and answer to explain the next miss."""
        if session is not None:
            _remember(self._last_tokens, session, tokens)

    async def load_sampled(self, messages: Sequence[Message]) -> None:
        """Fetch the sampled tokens of assistant messages, so that `recall` answers without waiting."""
        wanted = [
            (parent, m.content)
            for parent, m in zip([None, *chain_all(messages)], messages, strict=False)
            if m.role == "assistant" and m.content and (parent, m.content) not in self._sampled
        ]
        if wanted:
            found = await self._thread.run(lambda: [self._store.recall_sampled(p, t) for p, t in wanted])
            for key, ids in zip(wanted, found, strict=True):
                _remember(self._sampled, key, ids)

    def recall(self, parent: ChainDigest | None, text: str) -> Sequence[int] | None:
        """Return the ids an assistant message was sampled as; None when it wasn't sampled here."""
        return self._sampled.get((parent, text))

    async def record(
        self, session: str, messages: Sequence[Message], answer: Message | None, sampled: Sequence[int], *, origin: str
    ) -> None:
        """Store a request's history and its answer as the session's trajectory."""
        chains = chain_all(messages)
        parent = chains[-1] if chains else None

        def work() -> None:
            self._store.ensure(session, origin=origin)
            self._store.set_history(session, [*messages, *([answer] if answer is not None else [])])
            if answer is not None and answer.content:
                self._store.remember_sampled(parent, answer.content, list(sampled))

        await self._thread.run(work)
        if parent is not None:
            _remember(self._session_at, parent, session)
        if answer is not None and answer.content:
            _remember(self._sampled, (parent, answer.content), list(sampled) or None)

    def forget(self, session: str) -> None:
        """Drop what is remembered of a removed session, sampled text included."""
        self._last_tokens.pop(session, None)
        for chain in [c for c, s in self._session_at.items() if s == session]:
            del self._session_at[chain]
        self._sampled.clear()


def _remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > _REMEMBERED:
        memory.popitem(last=False)
