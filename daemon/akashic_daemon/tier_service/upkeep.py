"""What people ask of the tiers: figures, hints, prefetches, prunes, looks for damage, and that a session's KV be gone.

Async, on the event loop. What touches paths runs on the engine thread, what touches copies on the mover's; work on the
mover that must come after a session's exports and writes has their priority, so that nothing of it is written later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from akashic_daemon.engine.host import ModelHost
from akashic_daemon.errors import AkashicError, BadRequest, Conflict, Unsupported
from akashic_daemon.protocol import native
from akashic_daemon.protocol.tiers import Hinted, HintRequest, Prefetched, Pruned, PruneRequest, TierReport
from akashic_daemon.schedule.counters import Counters
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.sessions.traces import Known, Traces
from akashic_daemon.store.blocks.check import Finding
from akashic_daemon.tier_service.report import report
from akashic_daemon.tier_service.service import TierService
from akashic_daemon.tiers.block import Block, stored_fingerprint
from akashic_daemon.tiers.jobs import Priority
from akashic_daemon.tiers.mover import Mover
from akashic_daemon.tiers.removal import Choice, Gone, forget, prune, rename, verify, would_prune
from akashic_daemon.tiers.ssd import SsdStats

logger = logging.getLogger("akashic.tiers")
T = TypeVar("T")
_FIGURES_S = 0.5
"""So long a report waits for the mover; it shows the last known figures then."""
_WIPE_S = 45.0
"""So long `session rm` waits until the disk is rewritten; that goes on afterwards."""


class TierUpkeep:
    """The tiers of a service that runs."""

    def __init__(self, tiers: TierService, loop: StepLoop, host: ModelHost, traces: Traces, counters: Counters) -> None:
        self._tiers = tiers
        self._loop = loop
        self._host = host
        self._traces = traces
        self._counters = counters
        self._ssd_stats: SsdStats | None = None
        self._hints = 0

    # -- figures -----------------------------------------------------------------------------------------------

    async def report(self) -> TierReport:
        """Tell what the tiers hold and did; figures of the disk may be a moment old while the mover is busy."""
        if self._tiers.is_wanted:
            try:
                self._ssd_stats = await self._on_mover(self._figures, Priority.CALL, _FIGURES_S)
            except TimeoutError:
                logger.debug("the mover is busy: the last known figures of the SSD tier are told")
        return report(self._tiers, self._loop, self._counters, self._ssd_stats, self._hints, self.problems())

    def problems(self) -> list[str]:
        """Say which tiers don't work, one sentence each."""
        found = self._tiers.problems()
        if self._loop.tiering.problem:
            found.append(_stays_in_engine(self._loop.tiering.problem))
        stats = self._ssd_stats
        if self._tiers.mover.problem is None and stats is not None and stats.unavailable is not None:
            found.append(f"The SSD tier doesn't take or give blocks now, and is tried again: {stats.unavailable}")
        return found

    def _figures(self) -> SsdStats | None:
        ssd = self._mover.ssd
        return ssd.stats() if ssd is not None else None

    # -- upkeep ------------------------------------------------------------------------------------------------

    async def verify(self, *, fix: bool) -> list[native.StoreFinding]:
        """Look for damage in the block store, and mend it where asked; what can't be opened is a finding too."""
        if not self._tiers.budgets.ssd_bytes:
            return []
        mover = self._mover
        try:
            found, mended = await self._on_mover(lambda: verify(mover, fix=fix), Priority.CALL)
        except AkashicError as error:
            return [_finding("unreadable", "block store", str(error))]
        if mover.problem is not None:
            return [_finding("off", "block store", problem) for problem in self._tiers.problems()]
        return [_as_finding(f, (f.kind.value, f.subject) in mended) for f in found]

    async def prune(self, request: PruneRequest) -> Pruned:
        """Remove blocks, or say which would go. Raises Unsupported without tiers, Conflict without a model to compare."""
        self._require("pruning the tiers")
        other_than = None
        if not (
            request.everything
            or request.other_models
            or request.to_bytes is not None
            or request.unused_for_s is not None
        ):
            raise BadRequest(
                "pruning the tiers: nothing is named to remove",
                hint="set everything, unused_for_s, other_models or to_bytes",
            )
        if request.other_models:
            engine = self._loop.engine
            if engine is None:
                raise Conflict(
                    "pruning the blocks of other models: no model is loaded, so which are others isn't known",
                    hint="send a request first, or prune by --unused or --to",
                )
            other_than = stored_fingerprint(engine.model.fingerprint, self._tiers.settings.storage)
        choice = Choice(request.everything, request.unused_for_s, other_than, request.to_bytes)
        mover = self._mover
        work = would_prune if request.dry_run else prune
        gone = await self._on_mover(lambda: work(mover, choice), Priority.WRITE)
        return _as_pruned(gone, dry_run=request.dry_run)

    async def prefetch(self, session: str) -> Prefetched:
        """Bring the KV of a session's newest path into RAM. Raises Unsupported without a RAM tier."""
        self._require(f"prefetching session {session!r}")
        if not self._mover.arena.budget_bytes and self._loop.engine is not None:
            raise Unsupported(
                f"prefetching session {session!r}: there is no RAM tier to bring it into",
                hint="set cache.ram_bytes, then `akashic daemon restart`",
            )
        known = self._known(session)
        if known is None:
            return Prefetched(session=session, detail=self._why_unknown())
        tokens, blocks = await self._blocks_of(known)
        away = [block for block in blocks if block.slots is None and block.on_ssd]
        mover = self._mover
        await self._on_mover(lambda: mover.prefetch(away), Priority.PREFETCH)
        in_ram = [block for block in blocks if block.slots is not None]
        brought = [block for block in away if block.slots is not None]
        detail = ""
        if len(brought) < len(away):
            detail = f"{len(away) - len(brought)} blocks had no room in RAM or could not be read"
        return Prefetched(
            session=session,
            tokens_known=tokens,
            tokens_in_ram=sum(len(block.tokens) for block in in_ram),
            blocks_brought=len(brought),
            bytes_brought=sum(block.size_bytes for block in brought),
            bytes_in_ram=sum(block.size_bytes for block in in_ram),
            detail=detail,
        )

    async def hint(self, session: str, request: HintRequest) -> Hinted:
        """Expect a session's next request, so that its KV is in the engine by then; or expect it no more."""
        if not request.tool_running:
            await self._host.on_engine_thread(lambda: self._loop.tiering.cancel_hint(session))
            return Hinted(session=session, is_taken=True, detail="it is no longer expected")
        if not self._tiers.is_wanted:
            return Hinted(
                session=session, is_taken=False, detail="no tier is on, so there is nothing to bring back from"
            )
        known = self._known(session)
        if known is None:
            return Hinted(session=session, is_taken=False, detail=self._why_unknown())
        await self._host.on_engine_thread(lambda: self._expect(session, known, request.expect_s))
        return Hinted(session=session, is_taken=True, tokens=len(known.trace.path.tokens))

    def expect(self, session: str, expect_s: float) -> None:
        """Expect a session's next request, where that has any effect; returns at once."""
        known = self._known(session)
        if self._tiers.is_wanted and known is not None:
            self._loop.call(lambda: self._expect(session, known, expect_s), _say_failure)

    def _expect(self, session: str, known: Known, expect_s: float) -> None:
        if self._loop.index is not None:
            self._hints += 1
            self._loop.tiering.hint(session, self._loop.index.ops.key(known.trace.path), expect_s)

    # -- sessions that go, and change their names --------------------------------------------------------------

    async def forget(self, session: str, *, wipe: bool) -> Gone:
        """Remove what only this session has from RAM and disk, also what is on its way there.

        wipe: and from the files that held it. `left` of the result says what is left and why.
        """
        if not self._tiers.is_wanted:
            left = self._tiers.why_not_removed()
            if wipe and not left:
                await asyncio.to_thread(lambda: self._tiers.pending.removed(session, wiped=True))
            return Gone(left=left)
        await self._host.on_engine_thread(lambda: self._loop.tiering.regroup(session, None))
        try:
            return await self._on_mover(lambda: self._forget(session, wipe=wipe), Priority.WRITE, _WIPE_S)
        except TimeoutError:
            return Gone(left="it is being removed from the disk, which takes longer than usual")
        except AkashicError as error:
            return Gone(left=f"{error}; it is tried again at the daemon's next start")

    async def will_forget(self, session: str) -> None:
        """Write down that a session's KV is to go, before anything of it goes. Raises StoreUnwritable."""
        await asyncio.to_thread(self._tiers.pending.add, session)

    def _forget(self, session: str, *, wipe: bool) -> Gone:
        """Forget a session on the mover's thread, and strike it out when that is done. Raises StoreError."""
        gone = forget(self._mover, session, wipe=wipe)
        left = self._tiers.why_not_removed()
        if left:
            return replace(gone, left=left)
        if wipe:
            self._tiers.pending.removed(session, wiped=not gone.left)
        return gone

    def renamed(self, old: str, new: str) -> None:
        """Let the blocks of a session be another's from now on; returns at once."""
        if not self._tiers.is_wanted:
            return
        mover, tiering = self._mover, self._loop.tiering

        def move() -> None:
            tiering.regroup(old, new)
            mover.submit(Priority.WRITE, lambda: rename(mover, old, new))

        self._loop.call(move, _say_failure)

    def share(self, session: str) -> None:
        """Let a session that was branched off have the blocks along its path; returns at once."""
        engine = self._loop.engine
        known = self._known(session)
        if not self._tiers.is_wanted or engine is None or known is None:
            return
        mover = self._mover

        def join() -> None:
            keys = [block.key for block in self._walk(known)[1]]
            mover.submit(Priority.WRITE, lambda: mover.join(session, keys))

        self._loop.call(join, _say_failure)

    # -- inside ------------------------------------------------------------------------------------------------

    @property
    def _mover(self) -> Mover:
        return self._tiers.mover

    def _require(self, doing: str) -> None:
        if not self._tiers.is_wanted:
            raise Unsupported(
                f"{doing}: there is no tier below the engine",
                hint="set cache.ram_bytes or cache.ssd_bytes, then `akashic daemon restart`",
            )

    def _known(self, session: str) -> Known | None:
        """Return a session's newest path under the loaded model."""
        engine = self._loop.engine
        return self._traces.of_session(session, engine.model.fingerprint) if engine is not None else None

    def _why_unknown(self) -> str:
        engine = self._loop.engine
        if engine is None:
            return "no model is loaded"
        return f"nothing of it was computed by the loaded model, {engine.model.name}"

    async def _blocks_of(self, known: Known) -> tuple[int, list[Block]]:
        return await self._host.on_engine_thread(lambda: self._walk(known))

    def _walk(self, known: Known) -> tuple[int, list[Block]]:
        """Return the tokens and whole blocks that the tiers know along a path; on the engine thread."""
        index = self._loop.index
        if index is None:
            return 0, []
        pieces = self._loop.tiering.pieces(index.ops.key(known.trace.path))
        whole = [p.block for p in pieces if p.count == len(p.block.tokens)]
        return sum(p.count for p in pieces), whole

    async def _on_mover(self, work: Callable[[], T], priority: Priority, timeout_s: float | None = None) -> T:
        """Do something on the mover's thread and return or raise what it does. Raises TimeoutError; it is done then too."""
        running = asyncio.get_running_loop()
        future: asyncio.Future[T] = running.create_future()

        def resolve(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # without an error it is what `work` returned

        def run() -> None:
            result: T | None = None
            failed: BaseException | None = None
            try:
                result = work()
            except AkashicError as error:
                failed = error
            except Exception as error:
                logger.exception("a call on the mover's thread failed by a bug")
                failed = error
            with suppress(RuntimeError):  # the daemon has stopped meanwhile: nobody waits
                running.call_soon_threadsafe(resolve, result, failed)

        self._mover.submit(priority, run)
        return await asyncio.wait_for(future, timeout_s)


def _stays_in_engine(problem: str) -> str:
    return f"The tiers are off for the loaded model, so its KV is lost when it leaves the engine: {problem}"


def _finding(kind: str, subject: str, detail: str) -> native.StoreFinding:
    return native.StoreFinding(store="blocks", kind=kind, subject=subject, detail=detail)


def _as_finding(found: Finding, is_mended: bool) -> native.StoreFinding:
    return native.StoreFinding(
        store="blocks", kind=found.kind.value, subject=found.subject, detail=found.detail, is_mended=is_mended
    )


def _as_pruned(gone: Gone, *, dry_run: bool) -> Pruned:
    return Pruned(
        dry_run=dry_run,
        ssd_blocks=gone.ssd_blocks,
        ssd_bytes=gone.ssd_bytes,
        ram_blocks=gone.ram_blocks,
        ram_bytes=gone.ram_bytes,
        freed_bytes=gone.freed_bytes,
        left=gone.left,
    )


def _say_failure(result: object) -> None:
    if isinstance(result, BaseException):
        logger.error("telling the tiers of a session: %s", result)
