"""KV of a run of tokens as flat bytes in the caller's memory, and back: what tiers keep (`engine.packed` is the head).

    u16 slots [cells], padded to 16 bytes; K [layers, cells, kv_heads, head_dim]; V likewise; in the pool's type

K lies as it lay in its page, turned by the slot that stands beside it. Where it comes to lie in another slot it is turned
by the difference; in the same one its bits stay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from akashic_daemon.engine.base import AS_COMPUTED, STORAGES
from akashic_daemon.engine.packed import HEAD_BYTES, Head, odd, read_head
from akashic_daemon.engine.torch_engine.kv import PagedKv
from akashic_daemon.engine.torch_engine.views import cells_of
from akashic_daemon.errors import EngineError, Unsupported

_KV_TYPES = {torch.float32: "pt-f32", torch.float16: "pt-f16", torch.bfloat16: "pt-bf16"}
_ALIGNMENT_BYTES = 16


class CellExporter:
    """Reads and writes the cells of one engine."""

    def __init__(self, kv: PagedKv) -> None:
        self._kv = kv
        self._layers, _, self._heads, _, self._head_dim = kv.pool.k.shape
        self._row_bytes = self._heads * self._head_dim * kv.pool.dtype.itemsize

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
        slots, k, v = self._parts(np.frombuffer(into, np.uint8)[HEAD_BYTES:needed], count)
        slots[:] = cells % self._kv.table.page_tokens
        on_device = torch.from_numpy(cells).to(self._kv.pool.device)
        for layer in range(self._layers):
            for part, found in zip((k[layer], v[layer]), self._kv.pool.read(layer, on_device), strict=True):
                part.copy_(found)
        kind = _KV_TYPES[self._kv.pool.dtype]
        return Head(storage, kind, count, start, needed - HEAD_BYTES).write(into)

    def import_cells(self, data: memoryview, sequence: int, start: int, end: int) -> None:
        """Add new cells to `sequence` at these positions: those in `data`."""
        count, pool = end - start, self._kv.pool
        head = read_head(data, _KV_TYPES[pool.dtype], count)
        if head.storage != AS_COMPUTED or head.payload_bytes != self._payload_bytes(count):
            raise odd(f"{head.payload_bytes:,} bytes as {head.storage} can't be {count} cells of this model")
        slots, k, v = self._parts(np.frombuffer(bytearray(data[HEAD_BYTES:]), np.uint8), count)
        if int(slots.max(initial=0)) >= self._kv.table.page_tokens:
            raise odd(f"it names slot {int(slots.max())}; pages have {self._kv.table.page_tokens}")
        taken, views = self._kv.new_run(sequence, start, end)
        try:
            target = torch.from_numpy(cells_of(views, self._kv.table.page_tokens)[0]).to(pool.device)
            source = torch.from_numpy(slots.astype(np.int64)).to(pool.device)
            for layer in range(self._layers):
                turned = pool.turned(k[layer].to(pool.device), source, target)
                pool.write(layer, target, turned, v[layer].to(pool.device))
        except RuntimeError as error:
            self._kv.table.undo(taken)
            raise EngineError(f"importing {count} cells: {error}", hint="see the daemon's log") from error
        self._kv.adopt(sequence, views)

    def _payload_bytes(self, count: int) -> int:
        return self._slots_bytes(count) + 2 * self._layers * count * self._row_bytes

    @staticmethod
    def _slots_bytes(count: int) -> int:
        return -(-2 * count // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

    def _parts(
        self, payload: npt.NDArray[np.uint8], count: int
    ) -> tuple[npt.NDArray[np.uint16], torch.Tensor, torch.Tensor]:
        """Return views of a payload: slots, K and V."""
        first = self._slots_bytes(count)
        slots = payload[: 2 * count].view("<u2")
        values = torch.from_numpy(payload[first:]).view(self._kv.pool.dtype)
        k, v = values.view(2, self._layers, count, self._heads, self._head_dim)
        return slots, k, v
