"""Running a request on a remote server: sessions, policies and explanations are ours, tokens and KV are the server's.

What the server reused is what its usage says; how many tokens a message has is estimated from what earlier prompts had.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from akashic_daemon import request_ids
from akashic_daemon.answers.record import checked_continuation
from akashic_daemon.context.layout import label_of
from akashic_daemon.context.planner import Room
from akashic_daemon.engine.host import KnownModel
from akashic_daemon.errors import AkashicError, BadRequest, NotFound, Unsupported
from akashic_daemon.protocol.context import ExplainedSegment, Explanation
from akashic_daemon.protocol.native import Miss, Reuse, SessionActivity, Timing
from akashic_daemon.remote.client import Limits, RemoteClient
from akashic_daemon.remote.endpoint import Endpoint
from akashic_daemon.remote.messages import body_of, encoded, text_body
from akashic_daemon.remote.pruned import Pruned, prune
from akashic_daemon.remote.reading import AnswerReader
from akashic_daemon.schedule.counters import Counters
from akashic_daemon.schedule.events import Finished, GenerationEvent, GenerationInput, Started
from akashic_daemon.sessions.service import SessionService
from akashic_daemon.trajectory.message import Message, Role, chain_all
from akashic_daemon.types import ChainDigest

_BYTES_PER_TOKEN = 4.0
_TOKENS_OF_MARKS = 4
_PLENTY = 1 << 20
_KEPT_SESSIONS = 4096
_ESTIMATED = "tokens of messages are estimates; the sums are the server's"
_UNCOUNTED = "the server doesn't say what the answer took; its tokens are estimates"
_SILENT = "the server doesn't say what it reused"


@dataclass(slots=True)
class _Server:
    """One endpoint, and what was learned of it."""

    client: RemoteClient
    model: str = ""
    bytes_per_token: float = _BYTES_PER_TOKEN

    def tokens_of(self, message: Message) -> int:
        """Estimate a message's tokens, its marks included."""
        calls = sum(len(c.name) + len(c.arguments) for c in message.tool_calls)
        size = len(message.content.encode("utf-8", "replace")) + calls + len(message.thinking or "")
        return _TOKENS_OF_MARKS + round(size / self.bytes_per_token)

    def shown_from(self, messages: Sequence[Message], window_start: int, max_tokens: int | None) -> tuple[int, int]:
        """Return how many messages at the start always stay, and the first of the newest that fit the window.

        When it has to move it moves on by a quarter of the window more than needed, so that the next turns find their
        prefix unchanged; it moves to a user's message where one follows.
        """
        window = self.client.endpoint.window_tokens
        head = 1 if messages[0].role is Role.SYSTEM else 0
        first = max(head, min(window_start, len(messages) - 1))
        counts = [self.tokens_of(m) for m in messages]
        limit = max(window - (max_tokens or 0), window // 2)
        if not window or sum(counts[:head]) + sum(counts[first:]) <= limit:
            return head, first
        target, kept, first = limit * 3 // 4 - sum(counts[:head]), 0, len(messages)
        while first > head and (first == len(messages) or kept + counts[first - 1] <= target):
            first -= 1
            kept += counts[first]
        while first < len(messages) - 1 and messages[first].role is not Role.USER:
            first += 1
        return head, first


@dataclass(slots=True)
class _Turn:
    """One request under way.

    left_out: messages at the history's start that don't fit the window. since_removals: `SessionBook.removals` when it
    came.
    """

    id: str
    session: str | None
    request: GenerationInput
    pruned: Pruned
    prompt_tokens: int
    left_out: int = 0
    left_out_tokens: int = 0
    window_moved: bool = False
    policy: str | None = None
    since_removals: int = 0
    started_s: float = field(default_factory=time.monotonic)
    last_piece_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Before:
    """chains: the digest after each message, the answer included."""

    chains: tuple[ChainDigest, ...]
    prompt_tokens: int
    answer_tokens: int


class RemoteGeneration:
    """Answers requests with models of other servers. Every method may raise AkashicError."""

    def __init__(
        self,
        sessions: SessionService,
        limits: Limits,
        *,
        default_policy: str = "none",
        client: Callable[[Endpoint, Limits], RemoteClient] = RemoteClient,
    ) -> None:
        """Make it; `default_policy` is that of requests which bring their history and name none."""
        self._default_policy = default_policy
        self._sessions = sessions
        self._book = sessions.book
        self._limits = limits
        self._make_client = client
        self._servers: dict[Endpoint, _Server] = {}
        self._before: dict[str, _Before] = {}
        """What each session sent last, and was answered."""
        self._running: dict[str, tuple[_Turn, AnswerReader]] = {}
        self.counters = Counters()

    async def close(self) -> None:
        """Close the connections."""
        for server in self._servers.values():
            await server.client.close()

    def activity(self) -> list[SessionActivity]:
        """Describe the requests that run on other servers now."""
        now_s = time.monotonic()
        return [
            SessionActivity(
                request=turn.id, session=turn.session, state="decode" if reader.first_s else "prefill",
                prompt_tokens=turn.prompt_tokens, generated_tokens=reader.pieces, age_s=now_s - turn.started_s,
            )
            for turn, reader in self._running.values()
        ]  # fmt: skip

    async def generate(
        self, model: KnownModel, request: GenerationInput, *, window_start: int | None = None
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Run one request; closing the iterator cancels it there. window_start: of a session whose history may be longer."""
        since = self._book.removals
        server = await self._server(model)
        turn = await self._plan(server, request, window_start)
        turn.since_removals = since
        async with aclosing(self._run(server, model, turn)) as events:
            async for event in events:
                yield event

    async def count_tokens(self, model: KnownModel, request: GenerationInput) -> int:
        """Return what the server counts of a prompt. Raises Unsupported when it has no route that counts."""
        server = await self._server(model)
        body = body_of(request, request.messages or (), server.model)
        asked: dict[str, Any] = {key: body[key] for key in ("model", "messages", "tools") if key in body}
        if request.messages is None:
            asked = {"model": server.model, "prompt": request.text or ""}
        root = server.client.endpoint.url.removesuffix("/v1")
        counter = replace(server.client.endpoint, url=root)
        client = self._make_client(counter, self._limits)
        try:
            found = await client.ask("/tokenize", encoded(asked))
        except (NotFound, BadRequest) as error:
            raise Unsupported(
                f"counting the prompt's tokens: {server.client.endpoint.url} has no route that counts",
                hint="vLLM has /tokenize; usage of answers is exact with every server",
            ) from error
        finally:
            await client.close()
        if not isinstance(found.get("count"), int):
            raise Unsupported(f"counting the prompt's tokens: {root}/tokenize says no count", hint="vLLM's does")
        return int(found["count"])

    async def room(self, model: KnownModel, request: GenerationInput, window_start: int | None) -> Room:
        """Return what a prompt probably leaves of the window; without a known one, plenty."""
        server, messages = await self._server(model), request.messages or ()
        first = 0
        if window_start is not None and messages:
            head, first = server.shown_from(messages, window_start, request.max_tokens)
            messages, first = (*messages[:head], *messages[first:]), 0 if first == head else first
        window = server.client.endpoint.window_tokens or _PLENTY
        return Room(window, sum(map(server.tokens_of, messages)), first)

    async def estimate(self, model: KnownModel, messages: Sequence[Message]) -> int:
        """Estimate the tokens of messages."""
        server = await self._server(model)
        return sum(map(server.tokens_of, messages))

    # -- planning ------------------------------------------------------------------------------------------------

    async def _server(self, model: KnownModel) -> _Server:
        endpoint = model.remote
        assert endpoint is not None
        server = self._servers.get(endpoint)
        if server is None:
            server = self._servers[endpoint] = _Server(self._make_client(endpoint, self._limits), endpoint.model)
        if not server.model:
            names = [str(m["id"]) for m in await server.client.models()]
            if len(names) != 1:
                raise BadRequest(
                    f"{endpoint.url} serves {len(names)} models: {', '.join(names[:20]) or 'none'}",
                    hint="name one with `akashic model add --remote URL --upstream-model NAME`",
                )
            server.model = names[0]
        return server

    async def _plan(self, server: _Server, request: GenerationInput, window_start: int | None) -> _Turn:
        name = request_ids.next_id()
        if request.messages is None:
            return _Turn(name, None, request, Pruned.whole(()), round(len(request.text or "") / server.bytes_per_token))
        if not request.messages:
            raise BadRequest("messages is empty", hint="send at least one message")
        request = checked_continuation(replace(request, messages=await self._book.as_said(request.messages)))
        assert request.messages is not None
        session = request.session or await self._book.find(request.messages) or self._book.new_name()
        default = self._default_policy if window_start is None else "none"  # see ARCHITECTURE: a turn's is no text's
        pruned, policy = await self._pruned(server, session, request, default)
        turn = _Turn(name, session, replace(request, session=session), pruned, 0, policy=policy)
        if window_start is not None:
            await self._fit(server, turn, window_start)
        turn.prompt_tokens = sum(map(server.tokens_of, turn.pruned.messages))
        return turn

    async def _pruned(
        self, server: _Server, session: str, request: GenerationInput, default_policy: str
    ) -> tuple[Pruned, str | None]:
        """Return what is sent of the history, and by which policy."""
        assert request.messages is not None
        endpoint = server.client.endpoint
        if endpoint.passes_ops:
            _refuse_moved_numbers(request, endpoint.url)
            return Pruned.whole(request.messages, _passed_note(request)), request.policy
        program = await self._sessions.program(session)
        asked = self._sessions.asked(request, session, program, default_policy)
        self._book.remember_places(session, asked.ops, request.messages)
        since = program.policy_since if program is not None and program.policy else 0
        policy = str(asked.policy) if asked.policy is not None and asked.policy.rules else None
        if not asked.ops and policy is None:
            return Pruned.whole(request.messages, asked.notes), None  # a thread would only cost time
        pruned = await asyncio.to_thread(
            prune, request.messages, asked, server.tokens_of, window_tokens=endpoint.window_tokens, since=since
        )
        return pruned, policy

    async def _fit(self, server: _Server, turn: _Turn, window_start: int) -> None:
        """Leave out the oldest messages that the window has no room for."""
        messages, numbers = turn.pruned.messages, turn.pruned.numbers
        start = bisect_left(numbers, window_start)
        head, first = server.shown_from(messages, start, turn.request.max_tokens)
        if first > max(head, min(start, len(messages) - 1)):
            turn.window_moved = True
            if turn.session is not None:
                await self._sessions.set_window_start(turn.session, numbers[first])
        left = messages[head:first]
        turn.left_out, turn.left_out_tokens = len(left), sum(map(server.tokens_of, left))
        turn.pruned = replace(turn.pruned, messages=(*messages[:head], *messages[first:]))

    # -- running -------------------------------------------------------------------------------------------------

    async def _run(self, server: _Server, model: KnownModel, turn: _Turn) -> AsyncGenerator[GenerationEvent, None]:
        request = turn.request
        if request.messages is None:
            path, body = "/completions", text_body(request, server.model)
        else:
            path, body = "/chat/completions", body_of(request, turn.pruned.messages, server.model)
            if server.client.endpoint.passes_ops:
                body |= _akv_fields(request)
        reader = AnswerReader(turn.started_s)
        self._running[turn.id] = (turn, reader)
        self.counters.requests_total += 1
        is_told = False
        try:
            async with aclosing(server.client.stream(path, encoded(body), session=turn.session)) as pieces:
                async for piece in pieces:
                    if not is_told:
                        is_told = True
                        yield Started(turn.id, turn.session, model.name, turn.prompt_tokens, self._reuse(turn, reader))
                    for event in reader.read(piece):
                        self._count_piece(turn, reader)
                        yield event
            if not is_told:
                yield Started(turn.id, turn.session, model.name, turn.prompt_tokens, self._reuse(turn, reader))
            finished = self._finished(server, turn, reader)
        except BaseException as error:
            self._count_broken(reader, error)
            if is_told:
                await asyncio.shield(self._keep(model, turn, reader, None))
            raise
        finally:
            self._running.pop(turn.id, None)
        self._count_end(reader, finished)
        await asyncio.shield(self._keep(model, turn, reader, finished))
        yield finished

    def _count_piece(self, turn: _Turn, reader: AnswerReader) -> None:
        now_s = time.monotonic()
        self.counters.piece(reader.first_s if reader.pieces == 1 else None, now_s - turn.last_piece_s)
        turn.last_piece_s = now_s

    def _count_broken(self, reader: AnswerReader, error: BaseException) -> None:
        if isinstance(error, AkashicError):
            self.counters.requests_failed_total += 1
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.counters.requests_cancelled_total += 1
            self.counters.spread.finished("cancelled", Timing(), 0, reader.pieces)

    def _count_end(self, reader: AnswerReader, finished: Finished) -> None:
        self.counters.generated_tokens_total += finished.completion_tokens - reader.pieces
        self.counters.prompt(finished.reuse)
        self.counters.spread.finished(
            finished.finish_reason, finished.timing, finished.prompt_tokens, finished.completion_tokens
        )

    def _finished(self, server: _Server, turn: _Turn, reader: AnswerReader) -> Finished:
        now_s = time.monotonic()
        prompt_tokens = reader.prompt_tokens or turn.prompt_tokens
        if reader.prompt_tokens and turn.prompt_tokens > 256:
            server.bytes_per_token *= max(0.25, min(4.0, turn.prompt_tokens / reader.prompt_tokens))
        timing = Timing(
            prefill_s=reader.first_s, first_token_s=reader.first_s, total_s=now_s - turn.started_s,
            decode_s=max(0.0, now_s - turn.started_s - reader.first_s),
        )  # fmt: skip
        return Finished(
            reader.finish_reason, reader.text, prompt_tokens, reader.completion_tokens or reader.pieces,
            self._reuse(turn, reader), timing, tool_calls=reader.tool_calls,
            thinking=reader.thinking or None, thinking_tokens=reader.thinking_tokens,
        )  # fmt: skip

    def _reuse(self, turn: _Turn, reader: AnswerReader) -> Reuse:
        prompt = reader.prompt_tokens or turn.prompt_tokens
        reused = min(reader.cached_tokens or 0, prompt)
        said = [_SILENT] if reader.prompt_tokens and reader.cached_tokens is None else []
        if reader.is_over and not reader.prompt_tokens:
            said.append(_UNCOUNTED)
        return Reuse(
            session=turn.session, reused_tokens=reused, reused_by_tier={"remote": reused} if reused else {},
            computed_tokens=prompt - reused, dropped_tokens=turn.pruned.dropped_tokens,
            policy=turn.policy, left_out_messages=turn.left_out, left_out_tokens=turn.left_out_tokens,
            memory=turn.request.recalled, miss=self._miss(turn, prompt, reused) if reader.prompt_tokens else None,
            notes=[*turn.request.notes, *turn.pruned.notes, *reader.notes, *said],
        )  # fmt: skip

    def _miss(self, turn: _Turn, prompt_tokens: int, reused: int) -> Miss | None:
        """Say why the server reused no more: the text differs from what was sent last, or the server let it go."""
        if turn.session is None or prompt_tokens - reused <= _TOKENS_OF_MARKS:
            return None
        before = self._before.get(turn.session)
        if before is None:
            return Miss(cause="cold", at_token=reused, detail="the first request of this session to this server")
        now = chain_all(turn.pruned.messages)
        pairs = zip(before.chains, now, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        if same >= len(before.chains):
            lost = before.prompt_tokens + before.answer_tokens - reused
            if lost <= _TOKENS_OF_MARKS:
                return None  # what is computed is what is new
            if reused >= before.prompt_tokens - _TOKENS_OF_MARKS:
                return Miss(
                    cause="tokenization_differs", at_token=reused, at_message=same - 1, could_reuse=lost,
                    detail="the server reads its own answer as other tokens than it sampled, or keeps no answers",
                )  # fmt: skip
            return Miss(
                cause="evicted", at_token=reused, could_reuse=lost,
                detail="the text only grew; the server no longer had all of it, or another replica answered",
            )  # fmt: skip
        if turn.window_moved:
            return Miss(cause="window_moved", at_token=reused, at_message=same)
        return Miss(cause="text_differs", at_token=reused, at_message=same, detail="the history was edited there")

    async def _keep(self, model: KnownModel, turn: _Turn, reader: AnswerReader, finished: Finished | None) -> None:
        messages, session = turn.request.messages, turn.session
        if session is None or messages is None:
            return
        answer, text, thinking = None, reader.text, reader.thinking or None
        if turn.request.continue_final:
            last, messages = messages[-1], messages[:-1]
            text, thinking = last.content + text, last.thinking
        if text or reader.tool_calls:
            answer = Message(
                Role.ASSISTANT, text, thinking=thinking, tool_calls=reader.tool_calls, event_time_s=time.time()
            )  # fmt: skip
        is_stored = await self._book.record(
            session, messages, answer, [], origin="api", since_removals=turn.since_removals
        )
        if finished is None or not is_stored:
            return
        begun = turn.pruned.messages[:-1] if turn.request.continue_final else turn.pruned.messages
        sent = [*begun, *([answer] if answer is not None else [])]
        self._before.pop(session, None)
        self._before[session] = _Before(tuple(chain_all(sent)), finished.prompt_tokens, finished.completion_tokens)
        if len(self._before) > _KEPT_SESSIONS:
            del self._before[next(iter(self._before))]
        with suppress(NotFound):  # removed since its answer was stored
            await self._sessions.add_explanation(session, self._explanation(model, turn, finished))

    def _explanation(self, model: KnownModel, turn: _Turn, finished: Finished) -> Explanation:
        server = self._servers[model.remote] if model.remote is not None else None
        assert server is not None
        counts = [server.tokens_of(m) for m in turn.pruned.messages]
        scale = finished.prompt_tokens / max(1, sum(counts))
        left, segments = finished.reuse.reused_tokens, []
        for number, (message, count) in enumerate(zip(turn.pruned.messages, counts, strict=True)):
            tokens = round(count * scale)
            reused = min(left, tokens)
            left -= reused
            segments.append(
                ExplainedSegment(
                    message=number, role=message.role.value, label=label_of(message), tokens=tokens, reused=reused,
                    computed=tokens - reused,
                )
            )  # fmt: skip
        reuse = finished.reuse
        return Explanation(
            session=turn.session or "", at_s=time.time(), model=model.name, plan="plain",
            prompt_tokens=finished.prompt_tokens, computed_tokens=reuse.computed_tokens,
            reused_tokens=reuse.reused_tokens, dropped_tokens=reuse.dropped_tokens, miss=reuse.miss,
            notes=[*reuse.notes, _ESTIMATED], segments=segments,
        )  # fmt: skip


def _akv_fields(request: GenerationInput) -> Mapping[str, Any]:
    """Return the fields of AKV that a request has, as they came."""
    found = {"drop_message": request.drop_message, "drop_rule": request.drop_rule}
    out: dict[str, Any] = {name: value for name, value in found.items() if value}
    if request.reposition:
        out["reposition"] = list(request.reposition)
    ours = {"cache_ops": list(request.cache_ops), "policy": request.policy, "edit_reuse": request.edit_reuse}
    own = {name: value for name, value in ours.items() if value}
    return out | ({"akashic": own} if own else {})


def _refuse_moved_numbers(request: GenerationInput, url: str) -> None:
    """Raise Unsupported for operations of a server that doesn't know which messages memory put there."""
    if request.sent is not None and (request.cache_ops or request.drop_message or request.reposition):
        raise Unsupported(
            f"cache operations are passed on to {url}, which counts what memory recalled like any other message",
            hint="send memory: false with them, or use a policy",
        )


def _passed_note(request: GenerationInput) -> tuple[str, ...]:
    return ("cache operations were passed on to the server",) if _akv_fields(request) else ()
