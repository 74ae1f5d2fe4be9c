"""KV of a run of tokens as flat bytes in the caller's memory, and back: what tiers keep (`engine.packed` is the head).

As computed, the payload is llama.cpp's blob, written by it into the caller's buffer and read by it from there. Its cells
come in the cache's order, which is nobody's business: each carries its position. Whatever isn't this context's is refused
before llama.cpp sees it. Short runs, and those that are turned or come from another storage, first become one blob:
llama.cpp looks at every cell of its cache several times a call, and where V is transposed it copies each row of each layer
by itself, however short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import llama_cpp
import numpy as np

from akashic_daemon.engine.base import AS_COMPUTED, Q8, STORAGES, PackedRun
from akashic_daemon.engine.llama_cpp import quantized
from akashic_daemon.engine.llama_cpp.blob import BlobLayout, ByteArray, IntArray, KvShape, parse_blob
from akashic_daemon.engine.llama_cpp.frame import AnyArray, Frame, frame_of
from akashic_daemon.engine.llama_cpp.rope import Rope
from akashic_daemon.engine.llama_cpp.state import load_sequence, save_sequence_into
from akashic_daemon.engine.packed import HEAD_BYTES, Head, odd, read_head
from akashic_daemon.errors import EngineError, Unsupported

_LONG_CELLS = 48
"""From here on a run is loaded from where it is: joining it costs more than it saves (runs of 20 take half the time)."""
_JOINED_CELLS = 256
"""No more cells are joined than that: enough for long copies, and little enough for a core's cache."""


@dataclass(frozen=True, slots=True)
class PackedForm:
    """What this context's blobs look like, as one of them showed, and how its keys turn (or why that isn't known)."""

    shape: KvShape
    layout: BlobLayout
    rope: Rope | str

    @classmethod
    def seen_in(cls, blob: ByteArray, shape: KvShape, rope: Rope | str) -> PackedForm | str:
        """Learn from a blob that holds a cell, or say why not. Raises EngineError for one that isn't of this shape."""
        layout = parse_blob(blob, shape).layout
        assert layout is not None
        return cls(shape, layout, rope) if layout.uniform else "its layers differ in how wide V is"

    def frame(self, count: int) -> Frame:
        """Return the frame of blobs of so many cells."""
        return frame_of(self.shape, self.layout, count)

    def storage(self, wanted: str) -> str:
        """Return how KV is really stored when `wanted` is asked for; KV that is quantized already stays as it is."""
        if wanted not in STORAGES:
            raise Unsupported(f"storing KV as {wanted!r} isn't known", hint=f"use one of {', '.join(STORAGES)}")
        return AS_COMPUTED if self.shape.kv_type == "q8_0" else wanted

    def payload_bytes(self, cells: int, storage: str) -> int:
        """Return what a payload of so many cells takes."""
        return self.layout.size_bytes(cells) if storage == AS_COMPUTED else quantized.quantized_bytes(self.frame(cells))


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A run that was looked at: its payload, where its cells stood, in the payload's order, and how far they go."""

    storage: str
    payload: ByteArray
    positions: IntArray
    shift: int
    run: PackedRun

    @property
    def ready(self) -> bool:
        """Tell if llama.cpp can load the payload as it is."""
        return self.storage == AS_COMPUTED and not self.shift


class CellPacker:
    """Works on one context, through the sequence `scratch` that is nobody else's. `form` may be why it can't.

    It keeps a buffer as large as the largest run, or group of runs, that needed one.
    """

    def __init__(self, context: Any, memory: Any, form: PackedForm | str, scratch: int) -> None:
        self._context = context
        self._memory = memory
        self._form = form
        self._scratch = scratch
        self._room: ByteArray = np.empty(0, np.uint8)

    def export_bytes(self, tokens: int, storage: str) -> int:
        """Return the bytes that an export of so many tokens takes."""
        form = self._known_form()
        return HEAD_BYTES + form.payload_bytes(tokens, form.storage(storage))

    def export_cells(self, sequence: int, start: int, end: int, into: memoryview, storage: str) -> int:
        """Write the cells of `sequence` at these positions into `into`; return the bytes used."""
        form, count = self._known_form(), end - start
        storage = form.storage(storage)
        if count < 1 or into.nbytes < (needed := HEAD_BYTES + form.payload_bytes(count, storage)):
            raise EngineError(f"exporting {count} cells into {into.nbytes:,} bytes: they don't fit, or are none")
        payload = np.frombuffer(into, np.uint8)[HEAD_BYTES:needed]
        room = payload if storage == AS_COMPUTED else self._room_for(form.layout.size_bytes(count))
        self._save(form, sequence, start, end, room)
        if storage == Q8:
            quantized.quantize(form.frame(count), form.layout, room, payload)
        return Head(storage, form.shape.kv_type, count, start, len(payload)).write(into)

    def _save(self, form: PackedForm, sequence: int, start: int, end: int, room: ByteArray) -> None:
        llama_cpp.llama_memory_seq_cp(self._memory, sequence, self._scratch, start, end)
        try:
            written = save_sequence_into(self._context, self._scratch, room)
        finally:
            self._clear()
        if written == len(room) and _is_run(form.frame(end - start).positions(room), start, end - start):
            return
        found = len(parse_blob(room[:written], form.shape))
        raise EngineError(
            f"exporting positions {start} to {end - 1} of sequence {sequence}: it holds {found} of these {end - start}"
        )

    def import_runs(self, runs: Sequence[PackedRun], sequence: int) -> None:
        """Add new cells to `sequence`: those of all runs, each at its positions; all or none."""
        form = self._known_form()
        parts = [self._look_at(form, run) for run in runs]
        self._check_free(runs, sequence)
        done: list[_Part] = []
        try:
            for group in _groups(parts):
                ready = len(group) == 1 and group[0].ready
                self._load(group[0].payload if ready else self._joined(form, group), sequence)
                done += group
        except EngineError:
            for part in done:
                llama_cpp.llama_memory_seq_rm(self._memory, sequence, part.run.start, part.run.end)
            raise

    def _load(self, blob: ByteArray, sequence: int) -> None:
        try:
            load_sequence(self._context, self._scratch, blob)
            llama_cpp.llama_memory_seq_cp(self._memory, self._scratch, sequence, -1, -1)
        finally:
            self._clear()

    def _check_free(self, runs: Sequence[PackedRun], sequence: int) -> None:
        places = sorted((run.start, run.end) for run in runs)
        if any(this[1] > following[0] for this, following in pairwise(places)):
            raise EngineError(f"importing KV: of {len(runs)} runs, two go to the same positions")
        for start, end in places:
            if self._holds_any(sequence, start, end):
                raise EngineError(
                    f"importing KV: sequence {sequence} holds one of the positions {start} to {end - 1} already"
                )

    @staticmethod
    def _look_at(form: PackedForm, run: PackedRun) -> _Part:
        """Make sure that a run is what it must be."""
        head = read_head(run.data, form.shape.kv_type, run.end - run.start)
        payload = np.frombuffer(run.data, np.uint8)[HEAD_BYTES:]
        if len(payload) < head.cells or head.storage != form.storage(head.storage):
            raise odd(f"{len(payload):,} bytes can't be {head.cells} cells stored as {head.storage}")
        frame = form.frame(head.cells)
        if head.storage == AS_COMPUTED:
            positions: IntArray | None = frame.positions(payload)
        else:
            positions = quantized.positions_in(payload, frame, form.layout)
        if positions is None or not _is_run(positions, head.first, head.cells):
            raise odd("its cells aren't those that its head names, or lie otherwise than this context's")
        shift = run.start - head.first
        if shift and isinstance(form.rope, str):
            raise Unsupported(f"moving KV to other positions: {form.rope}", hint="leave Repos out for this model")
        return _Part(head.storage, payload, positions, shift, run)

    def _joined(self, form: PackedForm, parts: Sequence[_Part]) -> ByteArray:
        """Return one blob of all parts, their cells where they go."""
        positions = np.concatenate([part.positions for part in parts])
        frame = form.frame(len(positions))
        room = self._room_for(frame.size_bytes)
        frame.lay_out(room, positions)
        targets, first = frame.arrays(room), 0
        for part in parts:
            count = len(part.positions)
            own = form.frame(count)
            beside = [_cells_of(own, n, target, first) for n, target in enumerate(targets)]
            if part.storage == AS_COMPUTED:
                for source, target in zip(own.arrays(part.payload), beside, strict=True):
                    target[...] = source
            else:
                quantized.restore(part.payload, count, beside)
            first += count
        shifts = np.concatenate([np.full(len(part.positions), part.shift, np.int64) for part in parts])
        if shifts.any():
            assert isinstance(form.rope, Rope)
            parse_blob(room, form.shape).reposition(positions + shifts, form.rope)
        return room

    def _holds_any(self, sequence: int, start: int, end: int) -> bool:
        low = llama_cpp.llama_memory_seq_pos_min(self._memory, sequence)
        high = llama_cpp.llama_memory_seq_pos_max(self._memory, sequence)
        if high < start or low >= end:
            return False
        llama_cpp.llama_memory_seq_cp(self._memory, sequence, self._scratch, start, end)
        try:
            return bool(llama_cpp.llama_memory_seq_pos_max(self._memory, self._scratch) >= 0)
        finally:
            self._clear()

    def _room_for(self, size_bytes: int) -> ByteArray:
        if len(self._room) < size_bytes:
            self._room = np.empty(size_bytes, np.uint8)
        return self._room[:size_bytes]

    def _known_form(self) -> PackedForm:
        if isinstance(self._form, str):
            raise Unsupported(f"exporting KV cells: {self._form}", hint="this model's KV can't leave its cache")
        return self._form

    def _clear(self) -> None:
        if not llama_cpp.llama_memory_seq_rm(self._memory, self._scratch, -1, -1):
            raise EngineError("llama.cpp refused to empty a scratch sequence")


def _groups(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Yield what is loaded at once: a long run that is ready alone, others together."""
    joined: list[_Part] = []
    cells = 0
    for part in parts:
        count = len(part.positions)
        if part.ready and count >= _LONG_CELLS:
            yield [part]
            continue
        if joined and cells + count > _JOINED_CELLS:
            yield joined
            joined, cells = [], 0
        joined = [*joined, part]
        cells += count
    if joined:
        yield joined


def _cells_of(own: Frame, number: int, target: AnyArray, first: int) -> AnyArray:
    """Return the part of a joined blob's array that belongs to a run's cells, from number `first` on."""
    cells = slice(first, first + own.count)
    return target[:, :, cells] if own.stacks[number].transposed else target[:, cells]


def _is_run(positions: IntArray, first: int, count: int) -> bool:
    wanted = np.arange(first, first + count)
    return len(positions) == count and (np.array_equal(positions, wanted) or np.array_equal(np.sort(positions), wanted))
