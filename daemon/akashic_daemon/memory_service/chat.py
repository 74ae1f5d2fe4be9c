"""Long-term memory in conversations: what is recalled before a question, and what of a conversation is remembered.

Recalled text is a message of its own right before the newest user message, with an answer of one word between them, for many
templates let no user's message follow another. Both stay there: clients that send their
history without it get it back at the same place, byte for byte, also after a restart. So memory only ever adds to the
end of a prompt (invariant 8). Knows nothing of how memory searches.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

from akashic_daemon.answers.answering import Answering
from akashic_daemon.config import MemorySection
from akashic_daemon.context.planner import Room
from akashic_daemon.errors import AkashicError, BadRequest, NotFound
from akashic_daemon.memory.answers import Recalled, Remembered, Selector
from akashic_daemon.memory.from_messages import said_of
from akashic_daemon.memory_service.service import MemoryService
from akashic_daemon.protocol import native
from akashic_daemon.protocol.memory import MemoryAsk
from akashic_daemon.schedule.events import GenerationEvent, GenerationInput, Started
from akashic_daemon.sessions.service import SessionService
from akashic_daemon.store.remembering import RememberingStore
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.trajectory.message import RECALL_SOURCE, Message, Role, chain_all
from akashic_daemon.types import ChainDigest, Clock, MessageDigest, SystemClock

logger = logging.getLogger("akashic.memory")

_KEPT_RECALLS = 8192
_WINDOW_SHARE = 4
"""Recalled text takes at most this part of the window."""
_ANSWER_TOKENS = 256
"""Room that recalled text leaves for an answer of unknown length."""
_LEAST_TOKENS = 64
"""In less room nothing is recalled: the marks alone take half of it."""
_TRIES = 3
_TAKEN = "Noted."
_LOOKS_PER_WAIT = 4
Place = tuple[MessageDigest, int]
"""A user message by its digest, and how many with the same one stand before it."""


@dataclass(frozen=True, slots=True)
class Scope:
    """From where a conversation recalls; what it says goes to the first of the namespaces."""

    namespaces: tuple[str, ...]
    budget_tokens: int

    @property
    def source(self) -> str:
        """The `source` of messages that were recalled in it."""
        return RECALL_SOURCE + ",".join(self.namespaces)

    def end(self, chain: ChainDigest) -> ChainDigest:
        """Return by what a client's history is known, which hasn't what was recalled into it."""
        text = f"{self.source}\n{chain}"
        return ChainDigest("recall1:" + hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest())


@dataclass(frozen=True, slots=True)
class Recall:
    """The messages to put before a question, and what they are made of, when that is known."""

    messages: tuple[Message, ...]
    told: native.Recalled | None = None


class ChatMemory:
    """Recalls into requests and turns, and remembers sessions. Every method may raise AkashicError."""

    def __init__(
        self,
        config: MemorySection,
        memory: MemoryService,
        generation: Answering,
        sessions: SessionService,
        remembering: RememberingStore,
        thread: StoreThread,
        *,
        ready: Callable[[], Awaitable[None]],
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._memory = memory
        self._generation = generation
        self._sessions = sessions
        self._remembering = remembering
        self._thread = thread
        self._ready = ready
        self._clock = clock or SystemClock()
        self._recalls: OrderedDict[ChainDigest, Recall | None] = OrderedDict()
        """What stands before the user message at a history's end; None: nothing was to the point."""
        self._watching: asyncio.Task[None] | None = None

    def scope(self, asked: bool | MemoryAsk | None, *, default: bool) -> Scope | None:
        """Return where a request recalls from; None when it uses no memory."""
        if asked is False or (asked is None and not default):
            return None
        ask = asked if isinstance(asked, MemoryAsk) else MemoryAsk()
        budget = self._config.budget_tokens if ask.budget_tokens is None else ask.budget_tokens
        return Scope(tuple(dict.fromkeys(ask.namespaces or [self._config.namespace])), budget)

    # -- requests that bring their history ------------------------------------------------------------------------

    async def generate(self, request: GenerationInput) -> AsyncGenerator[GenerationEvent, None]:
        """Run a request with what memory has for it, if it uses memory."""
        scope = self.scope(request.memory, default=self._config.api)
        if scope is None or not request.messages:
            if request.memory and request.messages is None:
                raise BadRequest("akashic.memory on a completion of bare text", hint="use a chat")
            async with aclosing(self._generation.generate(request)) as events:
                async for event in events:
                    yield event
            return
        chains = chain_all(request.messages)
        session: str | None = None
        try:
            async with aclosing(self._generation.generate(await self._woven(request, scope, chains))) as events:
                async for event in events:
                    if isinstance(event, Started):
                        session = event.session
                    yield event
        finally:
            if session is not None:
                await asyncio.shield(self._note(session, scope, chains[-1]))

    async def _note(self, session: str, scope: Scope, chain: ChainDigest) -> None:
        """Let a session go into memory, and its history be known as the client sends it."""
        with suppress(NotFound):  # it failed before anything of it was stored
            await self._thread.run(lambda: self._remembering.begin(session, scope.namespaces[0]))
            self._sessions.book.note_end(session, scope.end(chain))

    async def _woven(self, request: GenerationInput, scope: Scope, chains: Sequence[ChainDigest]) -> GenerationInput:
        """Return the request with what was recalled before its user messages, and before the newest if it is new."""
        assert request.messages is not None
        await self._ready()  # where earlier requests ended is read at the start
        ends = [scope.end(chain) for chain in chains]
        session = request.session or self._sessions.book.session_at(ends[-64:])
        stored: Mapping[Place, tuple[Message, ...]] | None = None
        out: list[Message] = []
        sent: list[int] = []
        seen: Counter[MessageDigest] = Counter()
        newest: Recall | None = None
        notes = request.notes
        last = len(request.messages) - 1
        for index, message in enumerate(request.messages):
            if message.role is Role.USER:
                place = (message.digest(), seen[message.digest()])
                seen[message.digest()] += 1
                if ends[index] not in self._recalls:
                    if stored is None:
                        stored = await self._stored(session, scope)
                    if place in stored:
                        self._keep(ends[index], Recall(stored[place]))
                    elif index == last:
                        so_far = replace(request, messages=(*out, *request.messages[index:]), sent=(*sent, len(out)))
                        found, note = await self._recall_into(so_far, message, scope)
                        self._keep(ends[index], found)
                        notes = (*notes, note) if note else notes
                recall = self._recalls.get(ends[index])
                if recall is not None:
                    out += recall.messages
                    newest = recall if index == last else newest
            sent.append(len(out))
            out.append(message)
        told = newest.told if newest is not None and newest.told is not None else _told(scope)
        return replace(request, messages=tuple(out), sent=tuple(sent), session=session, recalled=told, notes=notes)

    async def _stored(self, session: str | None, scope: Scope) -> Mapping[Place, tuple[Message, ...]]:
        """Return what was recalled in a stored session, by the user message before which it stands."""
        if session is None:
            return {}
        messages, _ = await self._sessions.stored(session)
        seen: Counter[MessageDigest] = Counter()
        out: dict[Place, tuple[Message, ...]] = {}
        before: list[Message] = []
        for message in messages:
            if message.role is Role.USER and not message.is_recalled:
                digest = message.digest()
                if before and all(one.source == scope.source for one in before):
                    out[digest, seen[digest]] = tuple(before)
                seen[digest] += 1
            before = [*before, message] if message.is_recalled else []
        return out

    async def _recall_into(
        self, request: GenerationInput, question: Message, scope: Scope
    ) -> tuple[Recall | None, str | None]:
        """Recall what fits a question within what a request leaves of the window; or say why not."""
        if not self._memory.is_used:
            return None, None
        room = await self._generation.room(request)
        left = room.window_tokens - room.prompt_tokens - (request.max_tokens or _ANSWER_TOKENS)
        shown = [m.content for m in request.messages or () if m is not question]
        return await self._recall(question.content, scope, min(scope.budget_tokens, left), shown, request.model)

    def _keep(self, end: ChainDigest, recall: Recall | None) -> None:
        self._recalls[end] = recall
        self._recalls.move_to_end(end)
        while len(self._recalls) > _KEPT_RECALLS:
            self._recalls.popitem(last=False)

    def forget(self) -> None:
        """Drop every recalled text that is kept to save work; sessions still hold theirs."""
        self._recalls.clear()

    async def turns_of(self, session: str) -> int:
        """Return how many turns memory holds of a session."""
        if not self._memory.is_used:
            return 0
        return len((await self._memory.forget(Selector(session=session), dry_run=True)).turns)

    # -- turns of sessions that the daemon keeps ------------------------------------------------------------------

    async def before_turn(self, session: str, request: native.TurnRequest, scope: Scope, max_tokens: int) -> Recall:
        """Remember what no longer fits the window, and recall for a question. There may be no messages: nothing fits."""
        history, window_start = await self._sessions.stored(session)
        room = await self._room_of(session, request, scope, history, window_start, max_tokens)
        remembered = 0
        if room.first_message:
            done = await self._remember(session, history, scope.namespaces[0], until=room.first_message)
            remembered = len(done.new_ids)
        if not self._memory.is_used:
            return Recall((), _told(scope))
        shown = [m.content for m in history[room.first_message :]]
        budget = min(scope.budget_tokens, room.window_tokens // _WINDOW_SHARE)
        recall, note = await self._recall(request.prompt, scope, budget, shown, request.model)
        if note:
            logger.info("session %s: %s", session, note)
        told = _told(scope) if recall is None or recall.told is None else recall.told
        messages = () if recall is None else recall.messages
        return Recall(messages, told.model_copy(update={"remembered": remembered}))

    async def _room_of(
        self,
        session: str,
        request: native.TurnRequest,
        scope: Scope,
        history: Sequence[Message],
        window_start: int,
        max_tokens: int,
    ) -> Room:
        question = Message(Role.USER, request.prompt)
        asked = GenerationInput(
            messages=(*history, question), model=request.model, session=session, policy=request.policy,
            edit_reuse=request.edit_reuse, max_tokens=max_tokens + scope.budget_tokens,
        )  # fmt: skip
        return await self._generation.room(asked, window_start)

    async def begin(self, session: str, scope: Scope) -> None:
        """Let a session go into memory when it is finished."""
        with suppress(NotFound):
            await self._thread.run(lambda: self._remembering.begin(session, scope.namespaces[0]))

    async def _recall(
        self, question: str, scope: Scope, budget: int, shown: Sequence[str], model: str | None
    ) -> tuple[Recall | None, str | None]:
        asked = budget
        for _ in range(_TRIES):
            if asked < _LEAST_TOKENS:
                break
            found = await self._memory.recall(
                question, namespaces=scope.namespaces, budget_tokens=asked, apart_from=shown
            )
            if not found.text:
                return None, None
            tokens = await self._generation.count_text(found.text + _TAKEN, model)
            if tokens <= budget:
                return self._as_recall(found, scope, tokens), None
            # What memory counts are estimates; the model's own count is what the budget means.
            asked = asked * budget // tokens - 1
        return None, "nothing was recalled: there is no room for it in the window, or in its budget"

    def _as_recall(self, found: Recalled, scope: Scope, tokens: int) -> Recall:
        at_s = self._clock.now_s()
        messages = (
            Message(Role.USER, found.text, event_time_s=at_s, source=scope.source),
            Message(Role.ASSISTANT, _TAKEN, event_time_s=at_s, source=scope.source),
        )
        turns = [
            native.RecalledTurn(
                turn=f"t{one.turn.id}",
                source=one.turn.source,
                speaker=one.turn.speaker,
                event_at_s=one.turn.event_at_s,
                score=round(one.score, 3),
            )
            for one in found.found
        ]
        return Recall(messages, _told(scope).model_copy(update={"tokens": tokens, "turns": turns}))

    # -- sessions into memory -------------------------------------------------------------------------------------

    async def remember(self, session: str, namespace: str | None = None) -> Remembered:
        """Take all of a stored session into memory. Raises NotFound."""
        messages = await self._sessions.export_session(session)
        return await self._remember(session, messages, namespace or self._config.namespace, until=len(messages))

    async def _remember(self, session: str, messages: Sequence[Message], namespace: str, *, until: int) -> Remembered:
        """Take a session's first messages into memory, those that aren't there yet; none of one that is removed meanwhile."""

        def begin() -> tuple[int, Sequence[ChainDigest]]:
            self._remembering.begin(session, namespace)
            known = self._remembering.get(session)
            count = 0 if known is None else known.message_count
            chains = chain_all(messages[: max(until, count)])
            stands = known is None or known.chain is None or known.chain in chains[count - 1 : count]
            return count if stands else 0, chains

        first, chains = await self._thread.run(begin)
        if first >= until:
            return Remembered((), ())
        done = await self._memory.add(namespace, said_of(messages[first:until]), session=session)
        try:
            await self._thread.run(lambda: self._remembering.advance(session, until, chains[until - 1]))
        except NotFound:  # it was removed meanwhile, and who removed it was told what memory had of it then
            await self._memory.take_back(done)
            self.forget()
            raise
        return done

    async def remember_finished(self) -> int:
        """Take into memory what sessions have said that were quiet for long; return how many sessions."""
        quiet_since_s = self._clock.now_s() - self._config.finished_after_s
        finished = await self._thread.run(lambda: self._remembering.finished(quiet_since_s))
        for one in finished:
            with suppress(NotFound):  # removed meanwhile
                messages = await self._sessions.export_session(one.session)
                await self._remember(one.session, messages, one.namespace, until=len(messages))
        return len(finished)

    def start(self) -> None:
        """Look for finished sessions from now on."""
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Look for none any more; one that is being taken in is begun anew next time."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(max(1.0, self._config.finished_after_s / _LOOKS_PER_WAIT))
            try:
                await self.remember_finished()
            except AkashicError as error:
                if error.message != told:
                    logger.warning("finished sessions can't be taken into memory now: %s", error)
                told = error.message


def _told(scope: Scope) -> native.Recalled:
    return native.Recalled(namespaces=list(scope.namespaces))
