"""Taking in a session that another home exported: all of it that is whole, and its KV where the loaded model is the same.

Each part was checked when it was read; here its meaning is. What is damaged, doesn't fit or can't be used is told and the
rest taken. KV is believed as far as its keys go: they are digests of tokens and operations, so a file from somebody else
can only be as right as its sender.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from akashic_daemon.engine.base import Engine
from akashic_daemon.engine.parts import difference, parts_of
from akashic_daemon.errors import AkashicError, BadRequest, NotFound, TranscriptError
from akashic_daemon.model_service import ModelService
from akashic_daemon.program.policy import Policy
from akashic_daemon.protocol import native
from akashic_daemon.protocol.archive import FORMAT, Kind, Part
from akashic_daemon.sessions.exporting import Homes, on_mover
from akashic_daemon.sessions.incoming import PARTS, Incoming, Reading, Sampled, whole
from akashic_daemon.store.sessions import check_name
from akashic_daemon.store.traces import unpack
from akashic_daemon.tiers.adopt import Adoption
from akashic_daemon.tiers.block import Block
from akashic_daemon.tiers.jobs import Priority

_WHY = {
    "damaged": "blocks of KV whose labels are damaged",
    "parent_missing": "blocks of KV that lead on from missing ones",
    "stored_otherwise": "blocks of KV that are stored in another way than here (cache.kv_storage)",
    "unwritable": "blocks of KV that the disk didn't take, and RAM had no room for",
    "no_room": "blocks of KV that had no room in the budgets",
    "model_changed": "blocks of KV whose model was unloaded meanwhile",
}


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where a session went: `is_new` unless one here holds the same history already."""

    session: str
    new_messages: int
    is_new: bool
    answers: list[Sampled]


class SessionImport:
    """Reads sessions with their KV."""

    def __init__(self, homes: Homes, models: ModelService, find_policy: Callable[[str], Policy]) -> None:
        self._homes = homes
        self._models = models
        self._find_policy = find_policy

    async def run(self, path: Path, *, name: str | None, label: str) -> AsyncGenerator[native.ImportEvent, None]:
        """Take in a spooled file, with progress; the last event is `done`. Raises TranscriptError, Conflict."""
        await self._homes.keeper.ready()
        with path.open("rb") as file:
            incoming = Incoming()
            reading = Reading(file, label)
            first_kv = await reading.batch(incoming)
            if not incoming.messages:
                raise TranscriptError(
                    f"importing {label}: none of its messages can be read", hint="export the session again"
                )
            placed = await self._homes.thread.run(lambda: self._place(incoming, name))
            await self._remember(incoming, placed)
            yield self._progress(incoming)
            kv = native.ImportedKv()
            async for event in self._take_kv(reading, first_kv, incoming, placed.session, kv):
                yield event
            yield self._done(path, incoming, placed, kv)

    # -- what isn't KV -----------------------------------------------------------------------------------------

    def _place(self, incoming: Incoming, name: str | None) -> _Placed:
        """Store the messages as a session of the name asked for, of its own name where that is free, or of another."""
        store = self._homes.store
        title, origin = incoming.text("title"), f"import:{FORMAT}"
        row = store.create(name or self._free(incoming.text("session")), origin=origin, title=title)
        new = store.append(row.name, incoming.messages)
        session = row.name if new or name else store.join_twin(row.name)
        answers = incoming.answers()
        for parent, text, ids in answers:
            store.remember_sampled(parent, text, ids)
        return _Placed(session, new, session == row.name, answers)

    def _free(self, name: str) -> str | None:
        """Return a session's own name, None when it is taken here or no name."""
        if not name:
            return None
        try:
            check_name(name)
            self._homes.store.get(name)
        except BadRequest:
            return None
        except NotFound:
            return name
        return None

    async def _remember(self, incoming: Incoming, placed: _Placed) -> None:
        homes, session = self._homes, placed.session
        places: dict[str, list[int]] = {}
        if placed.is_new:
            places = await self._set_program(incoming, session)
        homes.book.adopt(session, places, placed.answers)
        trace = incoming.trace
        if trace is None:
            return
        model, fingerprint = str(trace.head.get("model", "")), str(trace.head.get("fingerprint", ""))
        if homes.keeper.traces.of_session(session, fingerprint) is not None:
            return
        try:
            if not (model + fingerprint).isprintable():
                raise BadRequest("reading a trace: the names of its model can't be written")
            known = await asyncio.to_thread(unpack, session, model, fingerprint, trace.body)
        except AkashicError:
            incoming.problems[f"damaged: {PARTS[Kind.TRACE]}"] += 1
            return
        homes.keeper.traces.remember(known)
        homes.keeper.write(known, incoming.parts)

    async def _set_program(self, incoming: Incoming, session: str) -> dict[str, list[int]]:
        """Set what the session's cache is asked to do, as far as it means something here; return its places."""
        asked, programs, count = incoming.program, self._homes.programs, len(incoming.messages)
        policy, edit_reuse = asked.get("policy"), asked.get("edit_reuse")
        since, window = whole(asked.get("policy_since"), count) or 0, whole(asked.get("window_start"), count)
        if policy is not None:
            try:
                self._find_policy(str(policy))
            except AkashicError:
                incoming.problems[f"its policy {policy!r} isn't known here"] += 1
                policy = None
        ops = incoming.operations()
        reuse: Literal["exact", "drop"] | None = edit_reuse if edit_reuse in ("exact", "drop") else None

        def work() -> None:
            if policy is not None:
                programs.set_policy(session, str(policy), since)
            if reuse is not None:
                programs.set_edit_reuse(session, reuse)
            if ops:
                programs.set_ops(session, ops)
            if window is not None:
                self._homes.store.set_window_start(session, window)

        await self._homes.thread.run(work)
        return incoming.places()

    # -- KV ----------------------------------------------------------------------------------------------------

    async def _take_kv(
        self, reading: Reading, first: Sequence[Part], incoming: Incoming, session: str, kv: native.ImportedKv
    ) -> AsyncGenerator[native.ImportEvent, None]:
        if not first:
            kv.detail = "the file has no KV"
            return
        engine, why = await self._acquire(incoming)
        adoption: Adoption | None = None
        try:
            adoption, kv.detail = self._adoption(engine, why, incoming, session)
            parts = first
            while parts:
                if adoption is None:
                    kv.left_out_blocks += sum(p.kind == Kind.KV for p in parts)
                else:
                    await self._adopt(adoption, parts, incoming)
                yield self._progress(incoming)
                parts = await reading.batch(incoming)
            if adoption is not None:
                await on_mover(self._homes.tiers.mover, adoption.end, Priority.WRITE)
                _tell(adoption, incoming, kv)
        finally:
            # Also when the client left: it is done behind what may still be under way.
            if adoption is not None and not adoption.has_ended:
                self._homes.tiers.mover.submit(Priority.WRITE, adoption.end)
            if engine is not None:
                await self._homes.host.release()

    async def _acquire(self, incoming: Incoming) -> tuple[Engine | None, str]:
        """Keep the model loaded that is to go on with the session: that of the file if it is known here.

        Without one, say why.
        """
        homes = self._homes
        loaded = homes.loop.engine
        names: list[str | None] = [incoming.text("model") or None, None]
        if loaded is not None and loaded.model.fingerprint == incoming.fingerprint:
            names.insert(0, homes.host.loaded)
        why = ""
        for name in names:
            try:
                return await homes.host.acquire(await self._models.resolve(name)), ""
            except AkashicError as error:
                why = error.message
        return None, why

    def _adoption(
        self, engine: Engine | None, why: str, incoming: Incoming, session: str
    ) -> tuple[Adoption | None, str]:
        """Return what takes the blocks in; or None, and why they are left out."""
        tiering, tiers = self._homes.loop.tiering, self._homes.tiers
        if engine is None:
            return None, f"its KV was left out, for no model can be loaded: {why}"
        if not incoming.fingerprint:
            return None, "its KV was left out: by what it was computed can't be read"
        if engine.model.fingerprint != incoming.fingerprint:
            differs = (
                difference(incoming.parts, parts_of(engine.model)) if incoming.parts else "the file doesn't say in what"
            )
            return None, f"its KV was left out, for it was computed otherwise: {differs}"
        if not tiers.is_wanted:
            return None, "its KV was left out: no tier below the engine is on (cache.ram_bytes, cache.ssd_bytes)"
        if tiering.catalogue is None:
            return None, f"its KV was left out: {tiering.problem or 'no tier serves the loaded model'}"
        return Adoption(tiers.mover, tiering.catalogue, session), ""

    async def _adopt(self, adoption: Adoption, parts: Sequence[Part], incoming: Incoming) -> None:
        mover = self._homes.tiers.mover
        batch = _blocks(adoption, parts, incoming)
        if batch:
            await on_mover(mover, lambda: adoption.take(batch), Priority.WRITE)

    # -- answers -----------------------------------------------------------------------------------------------

    @staticmethod
    def _progress(incoming: Incoming) -> native.ImportEvent:
        return native.ImportEvent(
            kind="progress", read_bytes=incoming.read_bytes, messages=len(incoming.messages), format=FORMAT
        )

    @staticmethod
    def _done(path: Path, incoming: Incoming, placed: _Placed, kv: native.ImportedKv) -> native.ImportEvent:
        if incoming.left_out_messages:
            incoming.problems["messages that follow on damaged ones were left out"] += incoming.left_out_messages
        session = native.ImportedSession(
            session=placed.session,
            conversation=incoming.text("session") or placed.session,
            messages=len(incoming.messages),
            new_messages=placed.new_messages,
            is_main=True,
        )
        problems = [native.ImportProblem(reason=reason, count=n) for reason, n in incoming.problems.most_common()]
        return native.ImportEvent(
            kind="done",
            read_bytes=path.stat().st_size,
            messages=len(incoming.messages),
            format=FORMAT,
            sessions=[session],
            problems=problems,
            kv=kv,
        )


def _blocks(adoption: Adoption, parts: Sequence[Part], incoming: Incoming) -> list[tuple[Block, bytes]]:
    """Return the blocks of labels, each with the KV that follows if there is some."""
    out: list[tuple[Block, bytes]] = []
    refused: dict[str, str] = {}
    for part in parts:
        key = str(part.head.get("key", ""))
        if part.kind == Kind.LABEL:
            block = adoption.label(key, part.body)
            if isinstance(block, str):
                refused[key] = block
            else:
                out.append((block, b""))
            continue
        known = adoption.block(key)
        if known is None:
            adoption.taken.left_out[refused.get(key, "parent_missing")] += 1
        elif out and out[-1][0] is known:
            out[-1] = known, part.body
        else:
            out.append((known, part.body))  # its label ended the batch before
    return out


def _tell(adoption: Adoption, incoming: Incoming, kv: native.ImportedKv) -> None:
    taken = adoption.taken
    kv.blocks, kv.tokens, kv.kv_bytes, kv.known_blocks = taken.blocks, taken.tokens, taken.size_bytes, taken.known
    kv.left_out_blocks = sum(taken.left_out.values())
    for reason, count in taken.left_out.items():
        incoming.problems[_WHY[reason]] += count
