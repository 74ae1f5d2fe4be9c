"""Runs op scripts over stored sessions.

A script works on a scratch branch beside its session. Only when its last statement is done does the session's head move
there; on an error, a failed assertion or a client that leaves, the branch goes and the session is as before. Branches
that a script makes get their names at the end too.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from akashic_daemon.context.layout import Context, Drawer, from_message, view
from akashic_daemon.context.service import ContextService, Stored
from akashic_daemon.errors import AkashicError, AssertionFailed, BadRequest, Conflict, NotFound, ScriptError
from akashic_daemon.program.conditions import COUNTS, failures
from akashic_daemon.program.message_ops import DropSelected, MessageOp, ReplaceSelected, ReposAt
from akashic_daemon.program.plan import Plan, empty_layout, simulate
from akashic_daemon.program.script import (
    AppendStep,
    AssertStep,
    BranchStep,
    CheckpointStep,
    Content,
    DropStep,
    FromFile,
    GenerateStep,
    ReplaceStep,
    ReposStep,
    RollbackStep,
    ShowStep,
    Statement,
    parse_script,
)
from akashic_daemon.protocol import native
from akashic_daemon.protocol.context import ScriptEvent, ScriptRequest
from akashic_daemon.store.programs import SessionProgram
from akashic_daemon.store.sessions import check_name
from akashic_daemon.trajectory.message import Message
from akashic_daemon.transcript.content import without_lone_surrogates
from akashic_daemon.types import ChainDigest

logger = logging.getLogger("akashic.scripts")
_SCRATCH_NAME_CHARS = 100
T = TypeVar("T")


def script(service: ContextService, session: str, request: ScriptRequest) -> AsyncGenerator[ScriptEvent, None]:
    """Run a script over a session, or tell what it would do; when it fails the session is as before."""
    return (dry_run if request.dry_run else run_script)(service, session, request)


async def dry_run(service: ContextService, session: str, request: ScriptRequest) -> AsyncGenerator[ScriptEvent, None]:
    """Tell what each statement would do. Raises AssertionFailed at the end when an assertion wouldn't hold."""
    statements = parse_script(request.script)
    check_name(session)
    stored = await service.known(session)
    async with service.drawer() as drawer:
        plan = await _plan(service, drawer, stored, statements, request)
    for step in plan.steps:
        yield ScriptEvent(
            kind="step",
            session=session,
            line=step.line,
            statement=step.text,
            appended_tokens=step.appended_tokens,
            dropped_tokens=step.dropped_tokens,
            moved_tokens=step.moved_tokens,
            saved_tokens=step.saved_tokens,
            messages=step.messages,
            visible_tokens=step.visible_tokens,
            next_position=step.next_position,
            failures=list(step.failures),
            notes=list(step.notes),
        )
    if plan.failures:
        raise AssertionFailed(f"the script asserts what wouldn't hold: {'; '.join(plan.failures)}")
    yield ScriptEvent(kind="done", session=session)


async def _plan(
    service: ContextService,
    drawer: Drawer,
    stored: Stored | None,
    statements: Sequence[Statement],
    request: ScriptRequest,
) -> Plan:
    if stored is None:
        policy, layout, since = service.parts.shelf.find(service.parts.config.chat.policy), empty_layout(), 0
        ops: tuple[MessageOp, ...] = ()
    else:
        context = await service.context(drawer, stored)
        policy, since = context.program.policy, context.program.since
        layout, ops = context.layout, context.compiled.ops
    rules = policy.bound(drawer.engine.model.window_tokens)
    return await asyncio.to_thread(
        lambda: simulate(
            statements,
            layout,
            count=drawer.count,
            read=lambda path: _file(request, path),
            ops=ops,
            rules=None if rules is None else from_message(rules, since),
        )
    )


def _file(request: ScriptRequest, path: str) -> str:
    if path not in request.files:
        raise BadRequest(f"the text of the file {path!r} wasn't sent", hint="send it in `files`")
    return request.files[path]


@dataclass(slots=True)
class _Target:
    """A session that the script makes or changes, and the scratch branch that has its state for now.

    before: the session when the script began, None when the script makes it.
    """

    session: str
    scratch: str
    before: Stored | None
    explanations: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    head: ChainDigest | None
    program: SessionProgram


async def run_script(
    service: ContextService, session: str, request: ScriptRequest
) -> AsyncGenerator[ScriptEvent, None]:
    """Carry out a script. Raises ScriptError with the line, AssertionFailed with both values, Conflict."""
    statements = parse_script(request.script)
    run = _Run(service, session, request)
    try:
        await run.begin()
        for statement in statements:
            async with aclosing(run.step(statement)) as events:
                async for event in events:
                    yield event
        await run.keep()
        yield ScriptEvent(kind="done", session=run.target.session, context=await service.show(run.target.session))
    finally:
        await asyncio.shield(run.clean())


class _Run:
    def __init__(self, service: ContextService, session: str, request: ScriptRequest) -> None:
        self._service = service
        self._session = session
        self._request = request
        self._policy = service.parts.config.chat.policy
        self._targets: list[_Target] = []
        self._checkpoints: dict[str, _Checkpoint] = {}
        self._last: native.TurnEvent | None = None

    @property
    def target(self) -> _Target:
        """The session that the script works on now."""
        return self._targets[-1]

    async def begin(self) -> None:
        """Branch off."""
        check_name(self._session)
        known = await self._service.known(self._session)
        scratch = _scratch_name(self._session)
        store = self._service.parts.store
        if known is None:
            await self._run(lambda: store.create(scratch, origin="chat"))
        else:
            self._policy = self._service.default_policy(known.row)
            await self._run(lambda: store.fork(self._session, scratch, None))
        self._targets.append(_Target(self._session, scratch, known))

    async def step(self, statement: Statement) -> AsyncGenerator[ScriptEvent, None]:
        """Carry out a statement; the last event tells what is visible then."""
        done = ScriptEvent(kind="step", line=statement.line, statement=statement.text, session=self.target.session)
        try:
            if isinstance(statement, GenerateStep):
                async with aclosing(self._generate(statement)) as events:
                    async for event in events:
                        yield event
                assert self._last is not None
                done.reuse, done.appended_tokens = self._last.reuse, self._last.completion_tokens
                done.notes += [] if self._last.reuse is None else self._last.reuse.notes
            else:
                await self._do(statement, done)
            await self._describe(statement, done)
        except AssertionFailed:
            raise
        except BadRequest as error:
            place = f"line {statement.line} ("
            said = error.message
            said = said if said.startswith(place) else f"{place}{statement.text}): {said}"
            raise ScriptError(said, hint=error.hint, line=statement.line) from error
        yield done

    async def _do(self, statement: Statement, done: ScriptEvent) -> None:
        label, scratch = f"line {statement.line}", self.target.scratch
        if isinstance(statement, AppendStep):
            message = Message(statement.role, self._text(statement.content), event_time_s=time.time())
            await self._run(lambda: self._service.parts.store.append(scratch, [message]))
        elif isinstance(statement, DropStep):
            await self._operate(DropSelected(statement.selector, label=label), done)
        elif isinstance(statement, ReplaceStep):
            text = self._text(statement.content)
            await self._operate(ReplaceSelected(statement.selector, text, label=label), done)
        elif isinstance(statement, ReposStep):
            await self._operate(ReposAt(label=label), done)
        elif isinstance(statement, CheckpointStep):
            stored = await self._service.stored(scratch)
            self._checkpoints[statement.name] = _Checkpoint(stored.row.head, stored.program)
        elif isinstance(statement, RollbackStep):
            await self._go_back(self._checkpoints[statement.name])
        elif isinstance(statement, BranchStep):
            await self._branch(statement.name)
            done.notes.append(f"goes on as session {statement.name}")

    async def _operate(self, op: MessageOp, done: ScriptEvent) -> None:
        result = await self._service.carry_out(self.target.scratch, [op], default=self._policy)
        moved = isinstance(op, ReposAt)
        tokens = sum(added.tokens for added in result.added)
        done.moved_tokens, done.dropped_tokens = (tokens, 0) if moved else (0, tokens)
        done.notes += [note for note in result.notes if note.startswith(op.label)]
        done.notes += [] if result.added else ["nothing to do"]

    async def _generate(self, statement: GenerateStep) -> AsyncGenerator[ScriptEvent, None]:
        request = native.TurnRequest(
            prompt="",
            model=self._request.model,
            temperature=self._request.temperature,
            seed=self._request.seed,
            max_tokens=statement.limit_tokens,
            policy=(await self._service.stored(self.target.scratch)).program.policy or self._policy,
        )
        self._last = None
        async with aclosing(self._service.parts.generate(self.target.scratch, request)) as events:
            async for event in events:
                if event.kind == "text":
                    yield ScriptEvent(kind="text", line=statement.line, text=event.text)
                elif event.kind == "done":
                    self._last = event
        if self._last is None:
            raise AkashicError(
                f"line {statement.line} ({statement.text}): the answer ended before it was finished",
                hint="`akashic daemon logs` says more",
            )
        _, text = await self._run(lambda: self._service.parts.programs.explanation(self.target.scratch))
        self.target.explanations.append(text)

    async def _describe(self, statement: Statement, done: ScriptEvent) -> None:
        stored = await self._service.stored(self.target.scratch)
        async with self._service.drawer() as drawer:
            context = await self._service.context(drawer, stored, default=self._policy)
            model = drawer.engine.model
            if isinstance(statement, ShowStep):
                done.context = view(self.target.session, model.name, model.window_tokens, context)
        done.messages = len(context.ledger.visible["messages"])
        done.visible_tokens, done.next_position = context.ledger.visible_tokens, context.ledger.next_position
        if isinstance(statement, AppendStep) and context.messages:
            done.appended_tokens = context.layout.messages[-1].tokens
        if isinstance(statement, AssertStep):
            self._judge(statement, context)

    def _judge(self, statement: AssertStep, context: Context) -> None:
        reuse = None if self._last is None else self._last.reuse
        run_counts = {} if reuse is None else {"reused": reuse.reused_tokens, "computed": reuse.computed_tokens}
        unknown = [c.count for c in statement.conditions if c.count not in COUNTS and c.count not in run_counts]
        if unknown:
            raise BadRequest(f"{unknown[0]} isn't known before an answer", hint="write `generate` above")
        found = failures(
            statement.conditions,
            lambda name: COUNTS[name](context.ledger) if name in COUNTS else run_counts[name],
        )
        if found:
            raise AssertionFailed(f"line {statement.line} ({statement.text}): {'; '.join(found)}")

    async def _go_back(self, to: _Checkpoint) -> None:
        parts, scratch = self._service.parts, self.target.scratch

        def work() -> None:
            parts.store.set_head(scratch, to.head)
            parts.programs.set_ops(scratch, to.program.ops)

        await self._run(work)

    async def _branch(self, name: str) -> None:
        check_name(name)
        if any(t.session == name for t in self._targets) or await self._service.known(name) is not None:
            raise BadRequest(f"a session {name!r} exists already", hint="choose another name")
        parts, here, scratch = self._service.parts, self.target, _scratch_name(name)
        state = await self._service.stored(here.scratch)

        def work() -> None:
            if here.before is None:
                parts.store.fork(here.scratch, scratch, None)
                return
            # The scratch branch won't last, so the new session is a branch of the one it stands for.
            parts.store.fork(here.session, scratch, 0)
            parts.store.set_head(scratch, state.row.head)
            parts.programs.set_policy(scratch, state.program.policy, state.program.policy_since)
            parts.programs.set_ops(scratch, state.program.ops)

        await self._run(work)
        self._targets.append(_Target(name, scratch, None))

    async def keep(self) -> None:
        """Give the sessions what the script made of them. Raises Conflict when one has changed meanwhile."""
        parts = self._service.parts

        def work() -> None:
            for target in self._targets:
                self._refuse_changed(target)
            for target in self._targets:
                if target.before is None:
                    parts.store.rename(target.scratch, target.session)
                    continue
                parts.store.set_head(target.session, parts.store.head(target.scratch))
                parts.programs.set_ops(target.session, parts.programs.get(target.scratch).ops)
                for text in target.explanations:
                    parts.programs.add_explanation(target.session, text)

        async with AsyncExitStack() as held:
            # In one order for all scripts: two could else wait for each other, and every turn of their sessions for them.
            for session in sorted(target.session for target in self._targets):
                await held.enter_async_context(parts.turns.between(session, "moving to the script's end"))
            async with self._service.editing:
                await self._run(work)
        for target in self._targets:
            parts.renamed(target.scratch, target.session)

    def _refuse_changed(self, target: _Target) -> None:
        """Raise Conflict for a session that isn't as the script found it; on the store thread."""
        parts, before = self._service.parts, target.before
        if before is None:
            with suppress(NotFound):
                parts.store.get(target.session)
                raise Conflict(
                    f"the script makes session {target.session!r}, which somebody else has made meanwhile",
                    hint="run it again, or choose another name",
                )
            return
        now = parts.store.head(target.session), parts.programs.get(target.session).ops
        if now != (before.row.head, before.program.ops):
            raise Conflict(
                f"the script ran on session {target.session!r}, which has changed meanwhile",
                hint="run it again; the session is as the other left it",
            )

    async def clean(self) -> None:
        """Remove what is left of the scratch branches."""
        for target in reversed(self._targets):
            try:
                if await self._service.known(target.scratch) is not None:
                    await self._service.parts.remove(target.scratch)
            except AkashicError as error:
                logger.warning("a script's scratch branch %s stays: %s", target.scratch, error)

    def _text(self, content: Content) -> str:
        text = _file(self._request, content.path) if isinstance(content, FromFile) else content
        return without_lone_surrogates(text)

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._service.parts.thread.run(work)


def _scratch_name(session: str) -> str:
    return f"{session[:_SCRATCH_NAME_CHARS]}.script-{secrets.token_hex(4)}"
