"""KV of a run of tokens as flat bytes in the caller's memory, and back: what tiers keep (`engine.packed` is the head).

As computed, the payload is llama.cpp's blob, written by it into the caller's buffer and read by it from there. Its cells
come in the cache's order, which is nobody's business: each carries its position. Whatever isn't this context's is refused
before llama.cpp sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np

from akashic_daemon.engine.base import AS_COMPUTED, STORAGES
from akashic_daemon.engine.llama_cpp.blob import Blob, BlobLayout, ByteArray, KvShape, parse_blob
from akashic_daemon.engine.llama_cpp.rope import Rope
from akashic_daemon.engine.llama_cpp.state import load_sequence, save_sequence_into
from akashic_daemon.engine.packed import HEAD_BYTES, Head, odd, read_head
from akashic_daemon.errors import EngineError, Unsupported


@dataclass(frozen=True, slots=True)
class PackedForm:
    """What this context's blobs look like, as one of them showed, and how its keys turn (or why that isn't known)."""

    shape: KvShape
    layout: BlobLayout
    rope: Rope | str

    @classmethod
    def seen_in(cls, blob: ByteArray, shape: KvShape, rope: Rope | str) -> PackedForm:
        """Learn from a blob that holds a cell. Raises EngineError for one that isn't of this shape."""
        layout = parse_blob(blob, shape).layout
        assert layout is not None
        return cls(shape, layout, rope)


class CellPacker:
    """Works on one context, through the sequence `scratch` that is nobody else's. `form` may be why it can't."""

    def __init__(self, context: Any, memory: Any, form: PackedForm | str, scratch: int) -> None:
        self._context = context
        self._memory = memory
        self._form = form
        self._scratch = scratch

    def export_bytes(self, tokens: int, storage: str) -> int:
        """Return the bytes that an export of so many tokens takes."""
        form = self._known_form()
        self._check_storage(form, storage)
        return HEAD_BYTES + form.layout.size_bytes(tokens)

    def export_cells(self, sequence: int, start: int, end: int, into: memoryview, storage: str) -> int:
        """Write the cells of `sequence` at these positions into `into`; return the bytes used."""
        form, count = self._known_form(), end - start
        needed = self.export_bytes(count, storage)
        if count < 1 or into.nbytes < needed:
            raise EngineError(f"exporting {count} cells: they take {needed:,} bytes, and {into.nbytes:,} are there")
        payload = np.frombuffer(into, np.uint8)[HEAD_BYTES:needed]
        self._check_held(self._save(sequence, start, end, payload), sequence, start, count)
        return Head(AS_COMPUTED, form.shape.kv_type, count, start, len(payload)).write(into)

    def _save(self, sequence: int, start: int, end: int, payload: ByteArray) -> Blob:
        llama_cpp.llama_memory_seq_cp(self._memory, sequence, self._scratch, start, end)
        try:
            written = save_sequence_into(self._context, self._scratch, payload)
        finally:
            self._clear()
        return parse_blob(payload[:written], self._known_form().shape)

    @staticmethod
    def _check_held(blob: Blob, sequence: int, start: int, count: int) -> None:
        if not _is_run(blob, start, count):
            raise EngineError(
                f"exporting positions {start} to {start + count - 1} of sequence {sequence}: it holds {len(blob)} "
                f"of these {count}"
            )

    def import_cells(self, data: memoryview, sequence: int, start: int, end: int) -> None:
        """Add new cells to `sequence` at these positions: those in `data`, turned where they stood elsewhere."""
        blob = self._unpacked(data, start, end)
        if self._holds_any(sequence, start, end):
            raise EngineError(
                f"importing KV: sequence {sequence} holds one of the positions {start} to {end - 1} already"
            )
        try:
            load_sequence(self._context, self._scratch, blob)
            llama_cpp.llama_memory_seq_cp(self._memory, self._scratch, sequence, -1, -1)
        finally:
            self._clear()

    def _unpacked(self, data: memoryview, start: int, end: int) -> ByteArray:
        """Return the blob in `data` with its cells at these positions; a view where they stood there already."""
        form = self._known_form()
        head = read_head(data, form.shape.kv_type, end - start)
        payload = np.frombuffer(data, np.uint8)[HEAD_BYTES:]
        blob = parse_blob(payload, form.shape)
        if blob.layout != form.layout or not _is_run(blob, head.first, head.cells):
            raise odd("its cells aren't those that its head names, or lie otherwise than this context's")
        if head.first == start:
            return payload
        if isinstance(form.rope, str):
            raise Unsupported(f"moving KV to other positions: {form.rope}", hint="leave Repos out for this model")
        payload = payload.copy()
        blob = parse_blob(payload, form.shape)
        blob.reposition(blob.positions() + np.int32(start - head.first), form.rope)
        return payload

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

    def _known_form(self) -> PackedForm:
        if isinstance(self._form, str):
            raise Unsupported(f"exporting KV cells: {self._form}", hint="this model's KV can't leave its cache")
        return self._form

    @staticmethod
    def _check_storage(form: PackedForm, storage: str) -> None:
        if storage not in STORAGES:
            raise Unsupported(f"storing KV as {storage!r} isn't known", hint=f"use one of {', '.join(STORAGES)}")
        if storage != AS_COMPUTED and form.shape.kv_type != "q8_0":
            raise Unsupported(f"storing {form.shape.kv_type} KV as {storage} isn't done yet", hint=f"use {AS_COMPUTED}")

    def _clear(self) -> None:
        if not llama_cpp.llama_memory_seq_rm(self._memory, self._scratch, -1, -1):
            raise EngineError("llama.cpp refused to empty a scratch sequence")


def _is_run(blob: Blob, first: int, count: int) -> bool:
    return len(blob) == count and bool(np.array_equal(np.sort(blob.positions()), np.arange(first, first + count)))
