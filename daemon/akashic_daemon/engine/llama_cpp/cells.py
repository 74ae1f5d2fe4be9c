"""Moving KV cells in and out of llama.cpp's cache, and putting them where its API can't (LLAMA_CPP.md).

A range of a sequence is saved through a scratch sequence that shares it; loading goes the other way. Positions change
by our own rotation of the saved K. A *tail gap* (the next token doesn't follow the last kept one) is what llama.cpp
refuses: for one decode, a copy of the last kept cell stands just before the batch under a false label, with its true K,
and the cell itself is kept aside; what attention computes is exactly what it would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np

from akashic_daemon.engine.llama_cpp.blob import Blob, ByteArray, KvShape, parse_blob
from akashic_daemon.engine.llama_cpp.rotation_check import Findings
from akashic_daemon.engine.llama_cpp.state import load_sequence, save_sequence
from akashic_daemon.errors import EngineError, Unsupported

Range = tuple[int, int]
SCRATCH_SEQUENCES = 32
"""Hidden sequence ids: so many tail gaps fit one batch, less one for saving and loading."""
SPARE_CELLS = 64
"""Cells beyond those that are offered: the copies that bridge tail gaps."""


@dataclass(frozen=True, slots=True, eq=False)
class LlamaCells:
    """Saved cells: llama.cpp's blob of them, and where they stood, in ascending order."""

    blob: ByteArray
    ranges: tuple[Range, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the blob."""
        return self.blob.nbytes


@dataclass(frozen=True, slots=True)
class _Bridge:
    """A tail gap being bridged: `kept` is the last kept cell's position, `aside` the sequence that holds it."""

    sequence: int
    aside: int
    kept: int
    label: int


class CellMover:
    """Works on one context. `first_scratch` is the first of SCRATCH_SEQUENCES ids that are nobody else's."""

    def __init__(self, context: Any, memory: Any, shape: KvShape | str, findings: Findings, first_scratch: int) -> None:
        self._context = context
        self._memory = memory
        self._shape = shape
        self.findings = findings
        self._scratch = first_scratch
        self._bridges: list[_Bridge] = []

    def save(self, sequence: int, ranges: Sequence[Range]) -> LlamaCells:
        """Copy out these position ranges, all of which `sequence` must hold."""
        for start, end in ranges:
            llama_cpp.llama_memory_seq_cp(self._memory, sequence, self._scratch, start, end)
        try:
            blob = save_sequence(self._context, self._scratch)
        finally:
            self._clear(self._scratch)
        wanted = sum(end - start for start, end in ranges)
        found = len(self._parse(blob))
        if found != wanted:
            raise EngineError(f"saving {wanted} cells of sequence {sequence}: it holds {found} of them")
        return LlamaCells(blob, tuple(ranges))

    def load(self, saved: LlamaCells, sequence: int, ranges: Sequence[Range]) -> None:
        """Add new cells to `sequence` at these positions, in the order in which they were saved."""
        blob = saved.blob
        if tuple(ranges) != saved.ranges:
            blob = self._moved(saved, ranges)
        try:
            load_sequence(self._context, self._scratch, blob)
            llama_cpp.llama_memory_seq_cp(self._memory, self._scratch, sequence, -1, -1)
        finally:
            self._clear(self._scratch)

    def _moved(self, saved: LlamaCells, ranges: Sequence[Range]) -> ByteArray:
        rope = self.findings.rope
        if isinstance(rope, str):
            raise Unsupported(f"moving KV to other positions: {rope}", hint="leave Repos out for this model")
        old, new = _spread(saved.ranges), _spread(ranges)
        if len(old) != len(new):
            raise EngineError(f"loading {len(old)} saved cells at {len(new)} positions")
        blob = saved.blob.copy()
        parsed = self._parse(blob)
        order = np.argsort(old, kind="stable")
        parsed.reposition(new[order][np.searchsorted(old[order], parsed.positions())], rope)
        return blob

    def _parse(self, blob: ByteArray) -> Blob:
        if isinstance(self._shape, str):
            raise Unsupported(f"copying KV cells: {self._shape}", hint="this model's cache can't be edited")
        return parse_blob(blob, self._shape)

    def bridge(self, sequence: int, last: int, start: int) -> None:
        """Let a batch of `sequence`, whose last cell stands at `last`, begin at `start` > last + 1; until `settle`."""
        if len(self._bridges) + 1 >= SCRATCH_SEQUENCES:
            raise EngineError(f"more than {SCRATCH_SEQUENCES - 1} tail gaps in one batch")
        aside = self._scratch + 1 + len(self._bridges)
        llama_cpp.llama_memory_seq_cp(self._memory, sequence, aside, last, last + 1)
        self._bridges.append(_Bridge(sequence, aside, last, start - 1))
        blob = save_sequence(self._context, aside)
        self._parse(blob).relabel(0, start - 1)
        self._remove(sequence, last, last + 1)
        try:
            load_sequence(self._context, self._scratch, blob)
            llama_cpp.llama_memory_seq_cp(self._memory, self._scratch, sequence, -1, -1)
        finally:
            self._clear(self._scratch)

    def settle(self) -> None:
        """Put the true cells back; call it after the decode, also when that failed."""
        for bridge in self._bridges:
            self._remove(bridge.sequence, bridge.label, bridge.label + 1)
            llama_cpp.llama_memory_seq_cp(self._memory, bridge.aside, bridge.sequence, bridge.kept, bridge.kept + 1)
            self._clear(bridge.aside)
        self._bridges.clear()

    def _clear(self, sequence: int) -> None:
        self._remove(sequence, -1, -1)

    def _remove(self, sequence: int, start: int, end: int) -> None:
        if not llama_cpp.llama_memory_seq_rm(self._memory, sequence, start, end):
            raise EngineError(f"llama.cpp refused to release positions {start}..{end} of sequence {sequence}")


def _spread(ranges: Sequence[Range]) -> np.ndarray[Any, np.dtype[np.int32]]:
    if not ranges:
        return np.empty(0, np.int32)
    return np.concatenate([np.arange(start, end, dtype=np.int32) for start, end in ranges])
