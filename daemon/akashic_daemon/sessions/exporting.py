"""A session as one file that another home goes on with: messages, program, trace, sampled ids, and the KV of its path.

KV comes from RAM, disk, or the engine's own cells, one block in memory at a time. What the file can't have is told in its
last part. Async, on the event loop; nothing here is on the token path.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from akashic_daemon.cache.keys import OpTable
from akashic_daemon.engine.host import ModelHost
from akashic_daemon.errors import AkashicError, EngineError, StoreError
from akashic_daemon.program.active import active_cache
from akashic_daemon.program.ranges import intersect
from akashic_daemon.program.wire import to_stored
from akashic_daemon.protocol.archive import Kind, begin, part
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.sessions.book import SessionBook
from akashic_daemon.sessions.trace_keeper import TraceKeeper
from akashic_daemon.sessions.traces import Known
from akashic_daemon.store.programs import ProgramStore, SessionProgram
from akashic_daemon.store.sessions import SessionRow, SessionStore, StoredMessage
from akashic_daemon.store.thread import StoreThread
from akashic_daemon.store.traces import pack
from akashic_daemon.tier_service.service import TierService
from akashic_daemon.tiers.adopt import payload_of
from akashic_daemon.tiers.block import Block, stored_fingerprint, to_label
from akashic_daemon.tiers.catalogue import Catalogue
from akashic_daemon.tiers.exporter import Exporter
from akashic_daemon.tiers.jobs import Priority
from akashic_daemon.tiers.mover import Mover

logger = logging.getLogger("akashic.tiers")
T = TypeVar("T")
_MESSAGES_A_PART = 64
_MOVER_S = 60.0
"""So long the mover may be busy with what is more urgent."""


@dataclass(frozen=True, slots=True)
class Homes:
    """What a session's export and import need of the daemon."""

    loop: StepLoop
    host: ModelHost
    tiers: TierService
    keeper: TraceKeeper
    book: SessionBook
    store: SessionStore
    programs: ProgramStore
    thread: StoreThread


@dataclass(frozen=True, slots=True)
class _Stored:
    row: SessionRow
    messages: list[StoredMessage]
    program: SessionProgram


@dataclass(slots=True)
class _Count:
    """What went into a file."""

    blocks: int = 0
    tokens: int = 0
    kv_bytes: int = 0
    left_out: int = 0
    notes: list[str] = field(default_factory=list)


async def on_mover(mover: Mover, work: Callable[[], T], priority: Priority) -> T:
    """Do something on the mover's thread. Raises StoreError when that stays busy."""
    try:
        return cast(T, await asyncio.to_thread(mover.call, work, _MOVER_S, priority=priority))
    except TimeoutError as error:
        raise StoreError(
            f"moving blocks of KV: the disk or the RAM tier was busy for {_MOVER_S:.0f} s", hint="try again later"
        ) from error


class SessionExport:
    """Writes sessions with their KV."""

    def __init__(self, homes: Homes) -> None:
        self._homes = homes

    async def run(self, session: str) -> AsyncGenerator[bytes, None]:
        """Give the file's bytes in small pieces. Raises NotFound before the first."""
        homes = self._homes
        await homes.keeper.ready()
        stored = await homes.thread.run(lambda: self._read(session))
        known = self._newest(session)
        places = homes.book.places_of(session)
        parts = dict(homes.keeper.parts(known.fingerprint)) if known is not None else {}
        yield begin()
        for piece in await asyncio.to_thread(lambda: list(_without_kv(stored, known, parts, places))):
            yield piece
        count = _Count()
        if known is None:
            count.notes.append("nothing of it was computed, so there is no KV")
        else:
            async for piece in self._kv(known, count):
                yield piece
        if count.left_out:
            count.notes.append(
                f"{count.left_out} blocks are in no tier and no longer in the engine: they are computed anew"
            )
        said = {"messages": len(stored.messages), "blocks": count.blocks, "tokens": count.tokens}
        for piece in part(Kind.END, {**said, "kv_bytes": count.kv_bytes, "notes": count.notes}):
            yield piece

    def _read(self, session: str) -> _Stored:
        homes = self._homes
        return _Stored(homes.store.get(session), homes.store.messages(session), homes.programs.get(session))

    def _newest(self, session: str) -> Known | None:
        """Return what the loaded model computed of it, or else the model that answered last."""
        engine, traces = self._homes.loop.engine, self._homes.keeper.traces
        own = traces.of_session(session, engine.model.fingerprint) if engine is not None else None
        return own or traces.newest_of(session)

    # -- KV ----------------------------------------------------------------------------------------------------

    async def _kv(self, known: Known, count: _Count) -> AsyncGenerator[bytes, None]:
        try:
            blocks, copy_now = await self._blocks(known)
        except AkashicError as error:
            count.notes.append(f"no KV: {error.message}")
            return
        visible = active_cache(known.trace.path).indices
        for block in blocks:
            payload = await self._payload(block, copy_now)
            if payload is None:  # what operations dropped is a name only: later blocks' names depend on it
                count.left_out += bool(intersect(visible, ((block.first, block.end),)))
            for piece in await asyncio.to_thread(_of_block, block, payload):
                yield piece
            if payload is not None:
                count.blocks += 1
                count.tokens += len(block.tokens)
                count.kv_bytes += len(payload)

    async def _payload(self, block: Block, copy_now: Callable[[Block], bytes | None] | None) -> bytes | None:
        mover = self._homes.tiers.mover
        payload = None
        if block.has_copy or block.is_moving:  # one that is on its way is there once what was handed over is stored
            payload = await on_mover(mover, lambda: payload_of(mover, block), Priority.PREFETCH)
        if payload is None and copy_now is not None:
            payload = await self._homes.host.on_engine_thread(lambda: copy_now(block))
        return payload

    async def _blocks(self, known: Known) -> tuple[Sequence[Block], Callable[[Block], bytes | None] | None]:
        """Return the blocks along a path, and how to copy one out of the engine if that has the model."""
        engine = self._homes.loop.engine
        if engine is not None and engine.model.fingerprint == known.fingerprint:
            return await self._homes.host.on_engine_thread(lambda: self._of_loaded(known))
        mover, storage = self._homes.tiers.mover, self._homes.tiers.settings.storage
        if not self._homes.tiers.is_wanted:
            raise EngineError(f"its model, {known.model}, isn't loaded, and no tier below the engine is on")
        return await on_mover(mover, lambda: _of_disk(mover, known, storage), Priority.PREFETCH), None

    def _of_loaded(self, known: Known) -> tuple[Sequence[Block], Callable[[Block], bytes | None] | None]:
        loop = self._homes.loop
        engine, index = loop.engine, loop.index
        if engine is None or index is None:
            raise EngineError("the model was unloaded meanwhile")
        exporter = loop.tiering.exporter
        if exporter is None:
            storage = self._homes.tiers.settings.storage
            catalogue = Catalogue(stored_fingerprint(known.fingerprint, storage))
            exporter = Exporter(engine, index, catalogue, self._homes.tiers.mover, storage)
        path = known.trace.path
        key = index.ops.key(path)
        borders = list(itertools.accumulate(length for _, length in known.runs))
        # The last token was sampled, and perhaps not computed.
        blocks = exporter.blocks_along(key, borders, len(path.tokens) - 1)

        def copy_now(block: Block) -> bytes | None:
            if loop.engine is not engine or loop.index is not index:
                return None  # its cells are gone
            try:
                return exporter.copy_now(key, block)
            except EngineError as error:
                logger.error("copying the KV of %d tokens out of the engine: %s", len(block.tokens), error)
                return None

        return blocks, copy_now


def _of_disk(mover: Mover, known: Known, storage: str) -> list[Block]:
    """Return the blocks that the disk has of a path of a model that isn't loaded. Raises StoreError."""
    if mover.ssd is None:
        raise StoreError(f"its model, {known.model}, isn't loaded, and there is no disk to read its KV from")
    mover.flush_writes()
    table = OpTable()
    catalogue = Catalogue(stored_fingerprint(known.fingerprint, storage))
    catalogue.load((s.key, s.label, s.size_bytes) for s in mover.ssd.labels(catalogue.fingerprint))
    pieces = catalogue.walk(table.key(known.trace.path), table)
    return [piece.block for piece in pieces if piece.count == len(piece.block.tokens)]


def _without_kv(
    stored: _Stored, known: Known | None, fingerprint_parts: Mapping[str, str], places: Mapping[str, Sequence[int]]
) -> Iterator[bytes]:
    """Give everything but KV; on a worker thread, for a long history takes a while."""
    row, program = stored.row, stored.program
    home = {"session": row.name, "title": row.title, "messages": len(stored.messages)}
    if known is not None:
        home |= {"model": known.model, "fingerprint": known.fingerprint, "parts": dict(fingerprint_parts)}
    yield from part(Kind.HOME, home)
    for first in range(0, len(stored.messages), _MESSAGES_A_PART):
        some = stored.messages[first : first + _MESSAGES_A_PART]
        lines = "".join(json.dumps(m.message.to_json()) + "\n" for m in some)
        yield from part(Kind.MESSAGES, {"first": first, "count": len(some)}, lines.encode())
    asked = {
        "policy": program.policy,
        "policy_since": program.policy_since,
        "ops": [to_stored(op) for op in program.ops],
        "edit_reuse": program.edit_reuse,
        "places": dict(places),
        "window_start": row.window_start_message,
    }
    yield from part(Kind.PROGRAM, asked)
    sampled = [[m.index, list(m.token_ids)] for m in stored.messages if m.token_ids]
    yield from part(Kind.SAMPLED, {"ids": sampled})
    if known is not None:
        words = {"model": known.model, "fingerprint": known.fingerprint, "tokens": len(known.trace.path.tokens)}
        yield from part(Kind.TRACE, words, pack(known))


def _of_block(block: Block, payload: bytes | None) -> list[bytes]:
    """Return a block's label, and its KV where that is left."""
    pieces = list(part(Kind.LABEL, {"key": block.key}, to_label(block)))
    return pieces if payload is None else [*pieces, *part(Kind.KV, {"key": block.key}, payload)]
