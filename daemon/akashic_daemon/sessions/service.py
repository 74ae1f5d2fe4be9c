"""Sessions for people: listing, branching, exporting, removing, and filling them from transcripts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from akashic_daemon.errors import AkashicError, NotFound
from akashic_daemon.program.policy import Policy, load
from akashic_daemon.program.renumber import renumbered
from akashic_daemon.program.wire import Asked, from_request
from akashic_daemon.protocol import native
from akashic_daemon.protocol.context import Explanation
from akashic_daemon.schedule.events import GenerationInput
from akashic_daemon.sessions.book import SessionBook
from akashic_daemon.sessions.turn_order import TurnOrder
from akashic_daemon.store.programs import ProgramStore, SessionProgram
from akashic_daemon.store.sessions import SessionRow, SessionStore, StoredMessage
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.trajectory.message import Message, Role, chain_all
from akashic_daemon.transcript import Imported, detect_format, read_transcript

_FLUSH_MESSAGES = 500


class SessionService:
    """Async face of the session store."""

    def __init__(self, store: SessionStore, programs: ProgramStore, thread: StoreThread) -> None:
        self._store = store
        self._programs = programs
        self._thread = thread
        self.find_policy: Callable[[str], Policy] = load
        self.book = SessionBook(store, thread)
        self.turns = TurnOrder()

    async def program(self, session: str | None) -> SessionProgram | None:
        """Return what a session's cache is asked to do; None for no session, or one that isn't stored yet."""
        if session is None:
            return None
        try:
            return await self._thread.run(lambda: self._programs.get(session))
        except NotFound:
            return None

    def asked(
        self, request: GenerationInput, session: str | None, program: SessionProgram | None, default_policy: str
    ) -> Asked:
        """Return what a request asks of its context: its session's operations first, then its own, and one policy."""
        assert request.messages is not None
        stored = program.policy if program is not None else None
        policy = request.policy or (None if request.drop_rule else stored or default_policy)
        asked = from_request(
            message_count=len(request.messages if request.sent is None else request.sent),
            cache_ops=request.cache_ops,
            policy=policy,
            drop_message=request.drop_message,
            reposition=request.reposition,
            drop_rule=request.drop_rule,
            find=self.find_policy,
        )
        if request.sent is not None:
            sent = request.sent
            asked = replace(asked, ops=tuple(moved for op in asked.ops for moved in renumbered(op, sent)))
        own = program.ops if program is not None else ()
        return Asked((*own, *self.book.with_places(session, asked.ops)), asked.policy, asked.notes)

    async def add_explanation(self, session: str, explanation: Explanation) -> None:
        """Keep why a session's newest turn reused what it did."""
        await self._thread.run(lambda: self._programs.add_explanation(session, explanation.model_dump_json()))

    async def count(self) -> int:
        """Return the number of sessions."""
        return await self._thread.run(self._store.count)

    async def stored(self, session: str) -> tuple[list[Message], int]:
        """Return a session's messages and where its prompt's window began last time; none for one that isn't stored."""

        def work() -> tuple[list[Message], int]:
            try:
                row = self._store.get(session)
            except NotFound:
                return [], 0
            return [m.message for m in self._store.messages(session)], row.window_start_message or 0

        return await self._thread.run(work)

    async def begin_turn(
        self, session: str, prompt: str, system: str, *, before: Sequence[Message] = ()
    ) -> tuple[list[Message], int]:
        """Store the user's message and return the history with it, and where the prompt's window began last time.

        before: messages that are stored with it and stand right before it.
        """

        def work() -> tuple[list[Message], int]:
            row = self._store.ensure(session, origin="chat")
            messages = [m.message for m in self._store.messages(session)]
            new = [*before, Message(Role.USER, prompt, event_time_s=time.time())]
            if not messages and system:
                new.insert(0, Message(Role.SYSTEM, system))
            self._store.append(session, new)
            return [*messages, *new], row.window_start_message or 0

        return await self._thread.run(work)

    async def take_back(self, session: str, messages: Sequence[Message], count: int) -> None:
        """Undo `begin_turn` for a turn that never began: of `messages`, which it returned, the first `count` stay.

        A session that has gone on since keeps all, also one that was removed.
        """
        end = chain_all(messages)[-1]

        def work() -> None:
            with suppress(NotFound):
                if self._store.head(session) == end:
                    self._store.rewind(session, count)

        await self._thread.run(work)

    async def window_start(self, session: str) -> int:
        """Return where the session's prompt began last time. Raises NotFound."""
        row = await self._thread.run(lambda: self._store.get(session))
        return row.window_start_message or 0

    async def set_window_start(self, session: str, message: int) -> None:
        """Remember where the prompt begins, so that the next turn's prefix is the same."""
        await self._thread.run(lambda: self._store.set_window_start(session, message))

    async def list_sessions(self) -> native.SessionList:
        """Return all sessions, newest first."""
        rows = await self._thread.run(self._store.all)
        return native.SessionList(sessions=[_summary(r) for r in rows])

    async def get_session(self, session: str) -> native.SessionDetail:
        """Return a session with its messages."""
        row = await self._thread.run(lambda: self._store.get(session))
        stored = await self._thread.run(lambda: self._store.messages(session))
        return native.SessionDetail(summary=_summary(row), messages=[_view(m) for m in stored])

    async def fork_session(self, session: str, request: native.ForkRequest) -> native.SessionSummary:
        """Branch a session off; prefixes are shared."""
        row = await self._thread.run(lambda: self._store.fork(session, request.name, request.at_message))
        return _summary(row)

    async def export_session(self, session: str) -> list[Message]:
        """Return the messages of a session in order."""
        return [m.message for m in await self._thread.run(lambda: self._store.messages(session))]

    async def remove_session(self, session: str) -> native.RemovedSession:
        """Delete a session and every message that no other session holds; answers that run in it aren't stored."""

        def work() -> tuple[int, int]:
            self._store.get(session)
            try:
                return self._store.remove(session)
            finally:
                self.book.removed(session)

        try:
            removed, shared = await self._thread.run(work)
        finally:
            self.book.forget(session)  # also when the session is gone but its bytes couldn't be wiped yet
        return native.RemovedSession(session=session, messages_removed=removed, messages_shared=shared)

    async def import_transcript(
        self, path: Path, *, format_name: str | None, name: str | None, label: str | None = None
    ) -> AsyncGenerator[native.ImportEvent, None]:
        """Read a spooled transcript into sessions, telling how far it is; the last event is `done` or `error`.

        label: what the sender calls the transcript; errors name that, for nobody knows the spooled file.
        """
        running = asyncio.get_running_loop()
        events: asyncio.Queue[native.ImportEvent | None] = asyncio.Queue()
        gone = threading.Event()

        def tell(event: native.ImportEvent) -> None:
            if gone.is_set():
                raise _ClientGone
            if event.error is not None:
                shown = str(event.error["message"]).replace(str(path), label or "sent by the client")
                event.error["message"] = shown
            running.call_soon_threadsafe(events.put_nowait, event)

        task = asyncio.create_task(self._import(path, format_name, name, tell))
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
                if event.kind != "progress":
                    return
        finally:
            gone.set()
            await asyncio.shield(task)

    async def _import(
        self, path: Path, format_name: str | None, name: str | None, tell: Callable[[native.ImportEvent], None]
    ) -> None:
        def work() -> None:
            try:
                tell(_Import(self._store, path, format_name, name, tell).run())
            except _ClientGone:
                return
            except AkashicError as error:
                tell(native.ImportEvent(kind="error", error=error.to_wire()))

        await self._thread.run(work)


class _ClientGone(Exception):
    """The importing client left; what was stored stays."""


class _Import:
    """One import, on the store thread."""

    def __init__(
        self,
        store: SessionStore,
        path: Path,
        format_name: str | None,
        name: str | None,
        tell: Callable[[native.ImportEvent], None],
    ) -> None:
        self._store = store
        self._path = path
        self._format = format_name or detect_format(path)
        self._name = name
        self._tell = tell
        self._sessions: dict[str, native.ImportedSession] = {}
        self._pending: dict[str, list[Message]] = {}
        self._messages = 0

    def run(self) -> native.ImportEvent:
        problems: Counter[str] = Counter()
        first_line: dict[str, int | None] = {}
        for item in read_transcript(self._path, format=self._format, on_progress=self._progress):
            if isinstance(item, Imported):
                self._take(item)
            else:
                problems[item.reason] += 1
                first_line.setdefault(item.reason, item.line)
        for conversation in list(self._pending):
            self._flush(conversation)
        for session in self._sessions.values():
            if session.new_messages == 0 and session.session != self._name:
                session.session = self._store.join_twin(session.session)
        return native.ImportEvent(
            kind="done",
            read_bytes=self._path.stat().st_size,
            messages=self._messages,
            format=self._format,
            sessions=list(self._sessions.values()),
            problems=[
                native.ImportProblem(reason=r, count=n, first_line=first_line[r]) for r, n in problems.most_common()
            ],
        )

    def _progress(self, read_bytes: int) -> None:
        self._tell(
            native.ImportEvent(kind="progress", read_bytes=read_bytes, messages=self._messages, format=self._format)
        )

    def _take(self, item: Imported) -> None:
        if item.conversation not in self._sessions:
            self._open(item)
        pending = self._pending.setdefault(item.conversation, [])
        pending.append(item.message)
        self._messages += 1
        if len(pending) >= _FLUSH_MESSAGES:
            self._flush(item.conversation)

    def _open(self, item: Imported) -> None:
        name = self._name if self._name and item.is_main and not self._sessions else None
        row = self._store.create(name, origin=f"import:{self._format}", title=item.message.content[:80].strip())
        self._sessions[item.conversation] = native.ImportedSession(
            session=row.name, conversation=item.conversation, messages=0, new_messages=0, is_main=item.is_main
        )

    def _flush(self, conversation: str) -> None:
        messages = self._pending.pop(conversation, [])
        if messages:
            session = self._sessions[conversation]
            session.new_messages += self._store.append(session.session, messages)
            session.messages += len(messages)


def _summary(row: SessionRow) -> native.SessionSummary:
    return native.SessionSummary(
        session=row.name,
        title=row.title,
        messages=row.message_count,
        created_at_s=row.created_at_s,
        updated_at_s=row.updated_at_s,
        forked_from=row.forked_from,
        origin=row.origin,
    )


def _view(stored: StoredMessage) -> native.MessageView:
    return native.MessageView(
        index=stored.index,
        digest=stored.digest,
        created_at_s=stored.created_at_s,
        message=stored.message.to_json(),
    )
