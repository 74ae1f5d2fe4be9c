"""What is done to the cache of a live session: looking at it, operations at its end, its policy, and scripts.

A session's history is never rewritten here, save by appending; operations are stored resolved, each with the place where
it takes effect. What is refused leaves the session as it was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from akashic_daemon.cache.describe import describe
from akashic_daemon.cache.index import RadixIndex
from akashic_daemon.config import Config
from akashic_daemon.context.layout import Context, Drawer, Program, added_ops, resolved, view
from akashic_daemon.context.policies import PolicyShelf
from akashic_daemon.engine.host import ModelHost
from akashic_daemon.errors import BadRequest, NotFound
from akashic_daemon.model_service import ModelService
from akashic_daemon.program.message_ops import MessageOp, by_number
from akashic_daemon.program.wire import from_wire
from akashic_daemon.protocol import native
from akashic_daemon.protocol.context import (
    AppendRequest,
    CacheTree,
    ContextView,
    EditReuseRequest,
    Explanation,
    OpsRequest,
    OpsResult,
    PolicyList,
    PolicyRequest,
)
from akashic_daemon.sessions.book import SessionBook
from akashic_daemon.sessions.turn_order import TurnOrder
from akashic_daemon.store.programs import ProgramStore, SessionProgram
from akashic_daemon.store.sessions import SessionRow, SessionStore
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.transcript.content import storable

MOST_TREE_DEPTH = 100
T = TypeVar("T")


class Generate(Protocol):
    """Lets the model answer at the end of a stored session, which keeps the answer."""

    def __call__(self, session: str, request: native.TurnRequest) -> AsyncGenerator[native.TurnEvent, None]:
        """Yield the events of the answer; `request.prompt` isn't looked at."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A session as it is stored."""

    row: SessionRow
    messages: tuple[Message, ...]
    program: SessionProgram


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service is made of.

    remove: deletes a scratch branch. renamed: what is remembered of a session, by its old name, is now the new one's.
    """

    config: Config
    host: ModelHost
    models: ModelService
    book: SessionBook
    turns: TurnOrder
    store: SessionStore
    programs: ProgramStore
    thread: StoreThread
    shelf: PolicyShelf
    index: Callable[[], RadixIndex | None]
    generate: Generate
    remove: Callable[[str], Awaitable[object]]
    renamed: Callable[[str, str], None]


class ContextService:
    """Async face of programs, policies and explanations."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.editing = asyncio.Lock()
        """Held by who changes what was read of a session's program."""

    # -- looking -----------------------------------------------------------------------------------------------

    async def show(self, session: str) -> ContextView:
        """Return a session's active cache."""
        stored = await self.stored(session)
        async with self.drawer() as drawer:
            context = await self.context(drawer, stored)
            return self._view(session, drawer, context)

    async def explanation(self, session: str, turn: int | None) -> Explanation:
        """Return why a turn reused what it did; of the newest turn when None."""
        number, text = await self._run(lambda: self.parts.programs.explanation(session, turn))
        return Explanation.model_validate_json(text).model_copy(update={"turn": number, "session": session})

    async def cache_tree(self, depth: int) -> CacheTree:
        """Return the radix index down to a depth."""
        if not 1 <= depth <= MOST_TREE_DEPTH:
            raise BadRequest(f"drawing the cache {depth} nodes deep", hint=f"from 1 to {MOST_TREE_DEPTH} are drawn")
        model = self.parts.host.loaded

        def work() -> CacheTree:
            index = self.parts.index()
            return CacheTree(model=model) if index is None else describe(index, model=model, depth=depth)

        return await self.parts.host.on_engine_thread(work)

    async def policies(self) -> PolicyList:
        """Return every policy that a session can name."""
        return PolicyList(policies=await asyncio.to_thread(self.parts.shelf.all))

    # -- changing ----------------------------------------------------------------------------------------------

    async def edit(self, session: str, request: OpsRequest) -> OpsResult:
        """Carry out operations at the session's end. Raises BadRequest naming the operation, and nothing is done then."""
        if not request.ops:
            raise BadRequest(
                "editing a context: no operation was sent", hint='e.g. {"op": "drop", "select": "tool[0]"}'
            )
        ops = from_wire(request.ops)
        placed = next((op for op in ops if op.at is not None), None)
        if placed is not None:
            raise BadRequest(
                f"{placed.label} ({placed}): at is set, but on a live session operations take effect at its end",
                hint="leave `at` out, or send the operation with a request, as akashic.cache_ops",
            )
        return await self.carry_out(session, ops)

    async def carry_out(self, session: str, ops: list[MessageOp], *, default: str | None = None) -> OpsResult:
        """Do the same with operations whose labels name them. default: the policy of a session without its own."""
        async with self.editing, self.drawer() as drawer:
            stored = await self.stored(session)
            drawer.require(ops)
            at = len(stored.messages)
            new = [replace(exact, at=at) for op in ops for exact in by_number(op, at)]
            program = replace(stored.program, ops=(*stored.program.ops, *new))
            context = await self.context(drawer, replace(stored, program=program), default=default)
            kept = resolved(context, new)
            if kept:
                whole = (*stored.program.ops, *kept)
                await self._run(lambda: self.parts.programs.set_ops(session, whole))
            drawn = self._view(session, drawer, context)
            return OpsResult(added=added_ops(context, new), notes=list(context.compiled.notes), context=drawn)

    async def append(self, session: str, request: AppendRequest) -> ContextView:
        """Append a message; the session is made when it is new. Raises Conflict while it is answered."""
        message = storable(Message(Role(request.role), request.content, event_time_s=time.time()))

        def work() -> None:
            self.parts.store.ensure(session, origin="chat")
            self.parts.store.append(session, [message])

        async with self.parts.turns.between(session, "appending to"), self.editing:
            await self._run(work)
        return await self.show(session)

    async def set_policy(self, session: str, request: PolicyRequest) -> ContextView:
        """Let a policy be asked from here on. The one that the session has already goes on from where it began."""
        spec = None if request.policy is None else request.policy.strip()
        if spec is not None:
            self.parts.shelf.find(spec)

        def work() -> None:
            row = self.parts.store.ensure(session, origin="chat")
            if self.parts.programs.get(session).policy != spec:
                self.parts.programs.set_policy(session, spec, row.message_count)

        async with self.editing:
            await self._run(work)
        return await self.show(session)

    async def set_edit_reuse(self, session: str, request: EditReuseRequest) -> ContextView:
        """Say what an edited history of the session becomes in requests that don't say."""

        def work() -> None:
            self.parts.store.ensure(session, origin="chat")
            self.parts.programs.set_edit_reuse(session, request.edit_reuse)

        async with self.editing:
            await self._run(work)
        return await self.show(session)

    # -- what scripts need -------------------------------------------------------------------------------------

    async def stored(self, session: str) -> Stored:
        """Return a session as it is stored. Raises NotFound with the nearest name."""

        def work() -> Stored:
            row = self.parts.store.get(session)
            messages = tuple(m.message for m in self.parts.store.messages(session))
            return Stored(row, messages, self.parts.programs.get(session))

        found = await self._run(work)
        await self.parts.book.load_sampled(found.messages)
        return found

    async def known(self, session: str) -> Stored | None:
        """Return the same, None when there is no such session."""
        try:
            return await self.stored(session)
        except NotFound:
            return None

    @asynccontextmanager
    async def drawer(self) -> AsyncIterator[Drawer]:
        """Hold the loaded model, or the default one when none is."""
        parts = self.parts
        engine = await parts.host.acquire(await parts.models.resolve(parts.host.loaded))
        try:
            yield Drawer(engine, parts.host.builder, parts.book.recall, parts.config.chat.max_tokens)
        finally:
            await parts.host.release()

    def program(self, stored: Stored, default: str | None = None) -> Program:
        """Return what is asked of a session's cache, its policy found by name."""
        own = stored.program.policy
        policy = self.parts.shelf.find(own or default or self.default_policy(stored.row))
        since = stored.program.policy_since if own else 0
        return Program(stored.program.ops, policy, own is not None, since, stored.program.edit_reuse)

    def default_policy(self, row: SessionRow) -> str:
        """Return the settings' policy for a session: that of API requests, or that of `akashic chat`."""
        config = self.parts.config
        return config.cache.policy if row.origin == "api" else config.chat.policy

    async def context(self, drawer: Drawer, stored: Stored, *, default: str | None = None) -> Context:
        """Return a stored session's context."""
        program = self.program(stored, default)
        start = stored.row.window_start_message or 0
        return await asyncio.to_thread(lambda: drawer.context(stored.messages, program, window_start=start))

    @staticmethod
    def _view(session: str, drawer: Drawer, context: Context) -> ContextView:
        model = drawer.engine.model
        return view(session, model.name, model.window_tokens, context)

    async def _run(self, function: Callable[[], T]) -> T:
        return await self.parts.thread.run(function)
