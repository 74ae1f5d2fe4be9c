"""KV of a run of tokens as flat bytes in the caller's memory, and back: what tiers keep (`engine.packed` is the head).

    u16 slots [cells], padded to 16 bytes; K [layers, cells, kv_heads, head_dim]; V likewise; in the pool's type
    of a pool of 8 bits, padded to 16 bytes: scales of K, f32 [layers, cells, kv_heads]; scales of V likewise

K lies as it lay in its page, turned by the slot that stands beside it. Where it comes to lie in another slot it is turned
by the difference; in the same one its bits stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from akashic_daemon.engine.base import AS_COMPUTED, STORAGES, PackedRun
from akashic_daemon.engine.packed import HEAD_BYTES, Head, odd, read_head
from akashic_daemon.engine.torch_engine.kv import PagedKv
from akashic_daemon.errors import EngineError, Unsupported

_KV_TYPES = {torch.float32: "pt-f32", torch.float16: "pt-f16", torch.bfloat16: "pt-bf16", torch.int8: "pt-q8_0"}
_ALIGNMENT_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """A payload: `stored` are K and V [layers, cells, kv_heads, head_dim], and their scales if there are any."""

    slots: npt.NDArray[np.uint16]
    stored: tuple[torch.Tensor, ...]


class CellExporter:
    """Reads and writes the cells of one engine."""

    def __init__(self, kv: PagedKv) -> None:
        self._kv = kv
        self._layers = kv.pool.layers
        _, self._heads, _, self._head_dim = kv.pool.shape
        self._scales = 2 if kv.pool.dtype == torch.int8 else 0

    def export_bytes(self, tokens: int, storage: str) -> int:
        """Return the bytes that an export of so many tokens takes."""
        if storage not in STORAGES:
            raise Unsupported(f"storing KV as {storage!r} isn't known", hint=f"use one of {', '.join(STORAGES)}")
        if storage != AS_COMPUTED:
            raise Unsupported(f"the torch engine doesn't store KV as {storage} yet", hint=f"use {AS_COMPUTED}")
        return HEAD_BYTES + self._payload_bytes(tokens)

    def export_cells(self, sequence: int, start: int, end: int, into: memoryview, storage: str) -> int:
        """Write the cells of `sequence` at these positions into `into`; return the bytes used."""
        count = end - start
        needed = self.export_bytes(count, storage)
        if count < 1 or into.nbytes < needed:
            raise EngineError(f"exporting {count} cells: they take {needed:,} bytes, and {into.nbytes:,} are there")
        cells = self._kv.cells(sequence, start, end)
        parts = self._parts(np.frombuffer(into, np.uint8)[HEAD_BYTES:needed], count)
        parts.slots[:] = cells % self._kv.table.page_tokens
        try:
            for layer, found in enumerate(self._kv.pool.read(torch.from_numpy(cells))):
                for part, values in zip(parts.stored, found, strict=True):
                    part[layer].copy_(values)
        except RuntimeError as error:
            raise EngineError(f"exporting {count} cells: {error}", hint="see the daemon's log") from error
        kind = _KV_TYPES[self._kv.pool.dtype]
        return Head(storage, kind, count, start, needed - HEAD_BYTES).write(into)

    def import_runs(self, runs: Sequence[PackedRun], sequence: int) -> None:
        """Add new cells to `sequence`: those of all runs, each at its positions; all or none."""
        # In order, runs that were computed in one go lie as they did, and keep their bits.
        runs = sorted(runs, key=lambda run: run.start)
        parts = [self._look_at(run) for run in runs]
        if not parts:
            return
        pool = self._kv.pool
        taken, cells, views = self._kv.new_runs(sequence, [(run.start, run.end) for run in runs])
        try:
            source = torch.from_numpy(np.concatenate([p.slots for p in parts]).astype(np.int64))
            pool.write(torch.from_numpy(cells), map(partial(_layer_of, parts), range(self._layers)), source)
            pool.renew(cells)
        except RuntimeError as error:
            self._kv.table.undo(taken)
            raise EngineError(f"importing {len(cells)} cells: {error}", hint="see the daemon's log") from error
        self._kv.adopt(sequence, views)

    def _look_at(self, run: PackedRun) -> _Parts:
        """Make sure that a run is what it must be."""
        count = run.end - run.start
        head = read_head(run.data, _KV_TYPES[self._kv.pool.dtype], count)
        if count < 1 or head.storage != AS_COMPUTED or head.payload_bytes != self._payload_bytes(count):
            raise odd(f"{head.payload_bytes:,} bytes as {head.storage} can't be {count} cells of this model")
        # A copy: the caller's memory may be read-only, which torch doesn't know.
        parts = self._parts(np.frombuffer(bytearray(run.data[HEAD_BYTES:]), np.uint8), count)
        if int(parts.slots.max()) >= self._kv.table.page_tokens:
            raise odd(f"it names slot {int(parts.slots.max())}; pages have {self._kv.table.page_tokens}")
        return parts

    def _payload_bytes(self, count: int) -> int:
        return _padded(2 * count) + sum(map(_padded, self._sizes(count)))

    def _sizes(self, count: int) -> list[int]:
        """Return the bytes of each stored part."""
        rows = self._layers * count * self._heads
        sizes = [rows * self._head_dim * self._kv.pool.dtype.itemsize] * 2
        return [*sizes, *([rows * 4] * self._scales)]

    def _parts(self, payload: npt.NDArray[np.uint8], count: int) -> _Parts:
        """Return views of a payload."""
        rows = (self._layers, count, self._heads)
        shapes = [(*rows, self._head_dim)] * 2 + [rows] * self._scales
        kinds = [self._kv.pool.dtype] * 2 + [torch.float32] * self._scales
        stored, at = [], _padded(2 * count)
        for shape, kind, size in zip(shapes, kinds, self._sizes(count), strict=True):
            stored.append(torch.from_numpy(payload[at : at + size]).view(kind).view(shape))
            at += _padded(size)
        return _Parts(payload[: 2 * count].view("<u2"), tuple(stored))


def _layer_of(parts: Sequence[_Parts], layer: int) -> tuple[torch.Tensor, ...]:
    """Return what all payloads hold of a layer, one after the other."""
    return tuple(torch.cat([part[layer] for part in kind]) for kind in zip(*(p.stored for p in parts), strict=True))


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
