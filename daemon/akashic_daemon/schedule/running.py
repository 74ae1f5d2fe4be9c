"""The requests that run: what a step computed of each, what it says, and how it ends. Used on the engine thread only."""

from __future__ import annotations

import time
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING

from akashic_daemon.cache.index import RadixIndex
from akashic_daemon.engine.base import BatchItem, Engine
from akashic_daemon.errors import AkashicError, EngineError
from akashic_daemon.schedule.counters import Counters
from akashic_daemon.schedule.events import FinishReason, Progress, TextDelta
from akashic_daemon.schedule.report import log_end
from akashic_daemon.schedule.request import Request, State
from akashic_daemon.schedule.tiering import Tiering
from akashic_daemon.types import BLOCK_TOKENS

if TYPE_CHECKING:
    from akashic_daemon.schedule.admission import Admission


_MOST_PLANS = 32
"""Each time another has gone on meanwhile; a path that still isn't whole would never be."""


class Running:
    """`requests` that were admitted, on the engine and the index that are bound."""

    admission: Admission
    """Where those that wait are; set by the loop, as it ends some of them through this."""

    def __init__(self, counters: Counters, tiering: Tiering) -> None:
        self.requests: list[Request] = []
        self._counters = counters
        self._tiering = tiering
        self._engine: Engine | None = None
        self._index: RadixIndex | None = None

    def bind(self, engine: Engine | None, index: RadixIndex | None) -> None:
        """Account for what this engine computes from now on."""
        self._engine, self._index = engine, index

    def account(self, request: Request, item: BatchItem, number: int, now_s: float) -> None:
        """Take in what a step computed of a request, and sample its next token when that was asked for.

        `number` counts the batch's items; -1 is a piece that was deferred, of which nothing is asked.
        """
        assert self._index is not None
        assert request.sequence is not None
        assert request.sampler is not None
        first = self._index.next_index(request.sequence)
        self._index.extend(request.sequence, item.tokens)
        if request.state is State.PREFILL:
            if not request.generated:
                request.computed += len(item.tokens)
                request.computed_ranges.append((first, first + len(item.tokens)))
            request.ahead = max(0, request.ahead - len(item.tokens))
            self.cut(request, request.key)
            if not item.logits:
                request.emit(Progress(request.prompt_tokens - request.ahead, request.prompt_tokens))
                return
            request.state = State.DECODE
            request.ahead = 0
            request.reuse.reposed_tokens += self._index.moved_tokens(request.sequence)
            if not request.generated:
                request.describe_reuse()
                request.timing.prefill_s = now_s - request.admitted_s
                self._counters.prompt(request.reuse)
        request.stored = len(request.generated)
        if request.stored and request.stored % BLOCK_TOKENS == 0:
            self.cut(request, request.key_so_far())
        try:
            token = request.sampler.sample(number)
        except AkashicError as error:
            self.end_badly(request, error)  # its form can't be met; the others go on
            return
        self._take(request, token, time.monotonic())

    def cut(self, request: Request, key: array[int], *, is_final: bool = False) -> None:
        """Let what a request has computed be cut into blocks, to be copied out."""
        if request.trail is not None and request.sequence is not None and self._index is not None:
            computed = self._index.next_index(request.sequence)
            self._tiering.cut(request.trail, request.route.path, key, computed, is_final=is_final)

    def _take(self, request: Request, token: int, now_s: float) -> None:
        engine = self._engine
        assert engine is not None
        first = not request.generated
        if first:
            request.timing.first_token_s = now_s - request.created_s
        self._counters.token(request.timing.first_token_s if first else None, now_s - request.last_token_s)
        request.last_token_s = now_s
        request.generated.append(token)
        if engine.is_end(token):
            self.finish(request, "stop")
            return
        said = request.answer.push(token, engine.token_bytes(token), len(request.generated))
        for event in said or ([TextDelta("", 1)] if first else []):
            request.emit(event)
        if request.answer.is_over:
            self.finish(request, "stop")
        elif len(request.generated) >= request.budget_tokens:
            self.finish(request, "length")
        else:
            request.pending = token

    def _release(self, request: Request) -> None:
        self.admission.end_reload(request)
        if request.sequence is not None:
            self.cut(request, request.key_so_far(), is_final=True)
            self.leave_cells(request)
        if request.trail is not None:
            self._tiering.end_trail(request.trail)
            request.trail = None
        if request.sampler is not None:
            request.sampler.close()
            request.sampler = None
        request.state = State.DONE
        self.admission.blocked = False
        if request in self.requests:
            self.requests.remove(request)
        else:
            self.admission.waiting.remove(request)

    def leave_cells(self, request: Request) -> None:
        """Let a request's cells be idle. What the engine raises the index remembers, and the loop then empties the cache."""
        sequence, request.sequence = request.sequence, None
        if sequence is not None and self._index is not None and self._index.failed is None:
            with suppress(EngineError):
                self._index.finish(sequence)

    def trail_anew(self, request: Request) -> None:
        """Follow a request that was sent back from its beginning: what it computed is gone, and maybe was never copied."""
        if request.trail is not None:
            self._tiering.end_trail(request.trail)
            request.trail = self._tiering.trail(request.session, request.route, request.key)

    def wait_again(self, request: Request) -> None:
        """Send a request that runs back to the head of the queue; its cells become idle."""
        self.admission.end_reload(request)
        if request.sequence is not None:
            request.key = request.key[: request.prompt_key_length] + array("i", request.generated)
            self.leave_cells(request)
        request.state, request.pending = State.QUEUED, None
        self.requests.remove(request)
        self.admission.waiting.give_back(request)

    def plan_anew(self, request: Request, error: AkashicError) -> None:
        """Let a request wait whose path lost cells to others since it was planned; its next turn is at once."""
        request.planned_anew += 1
        if request.planned_anew > _MOST_PLANS:
            self.end_badly(request, error)
            return
        self.wait_again(request)
        self.admission.blocked = False

    def send_back(self, error: AkashicError, *, is_bug: bool) -> list[Request]:
        """Let those who run wait again without their cells, and return them; end those for whom that was tried.

        With nobody running, the one whose turn is next is taken to be concerned. After a bug of ours, all are ended.
        """
        waiting = self.admission.waiting
        concerned = self.requests[::-1] or ([waiting.head] if waiting.head is not None else [])
        sent_back: list[Request] = []
        for request in [*self.requests, *waiting] if is_bug else concerned:
            if is_bug or request.had_setback:
                self.end_badly(request, error)
                continue
            request.had_setback = True
            if request in self.requests:
                self.wait_again(request)
                told = "the engine failed in the middle, so it was computed again"
                request.reuse.notes = [*request.reuse.notes, told]
                sent_back.append(request)
        self.admission.blocked = False
        return sent_back

    def end_all(self, error: AkashicError) -> None:
        """End those who run as cancelled, with what they said, and those who wait by an error."""
        for request in list(self.requests):
            self.finish(request, "cancelled")
        for request in list(self.admission.waiting):
            self.end_badly(request, error)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request as it should end."""
        for event in request.answer.finish(len(request.generated)):
            request.emit(event)
        self._release(request)
        request.emit(request.end(reason, time.monotonic()))
        self._counters.spread.finished(reason, request.timing, request.prompt_tokens, len(request.generated))
        log_end(request, reason)

    def end_badly(self, request: Request, error: AkashicError) -> None:
        """End a request by an error, which its client is told."""
        self._counters.requests_failed_total += 1
        self._release(request)
        request.emit(error)
        log_end(request, error.code)
