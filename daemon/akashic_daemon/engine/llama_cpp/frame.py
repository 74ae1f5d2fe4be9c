"""What a blob of a known layout looks like around its K and V: checked, or written, in one go.

`parse_blob` walks through a blob and takes a third of a millisecond for thirty layers, as long as llama.cpp needs to load a
short one. For a context whose layout is known, all that isn't a position, K or V must be certain bytes at certain places.
K and V are handed out as few arrays, each of all layers of a section, so that numpy works on a whole block at once. These
are views: what is written changes the blob.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from akashic_daemon.engine.llama_cpp.blob import (
    CELL,
    COLUMNS_HEAD,
    COUNTS,
    HEAD,
    MAGIC,
    ROWS_HEAD,
    TYPES,
    BlobLayout,
    ByteArray,
    IntArray,
    KvShape,
)
from akashic_daemon.errors import EngineError

VALUE_TYPES: dict[str, npt.DTypeLike] = {"f32": "<f4", "f16": "<f2", "q8_0": "u1"}
"""What the arrays of K and V are made of: values, or the bytes of quantized ones."""
_LAYER_HEAD_BYTES = ROWS_HEAD.size
assert COLUMNS_HEAD.size == _LAYER_HEAD_BYTES

AnyArray = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Stack:
    """Where K or V of a section's layers stands: [layers, cells, width] or, transposed, [layers, width, cells]."""

    at: int
    layers: int
    width: int
    transposed: bool


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A blob of `count` cells. `fixed` are the places of `content`, all that isn't the same blob's own."""

    count: int
    size_bytes: int
    kind: npt.DTypeLike
    cells_at: tuple[int, ...]
    stacks: tuple[Stack, ...]
    fixed: npt.NDArray[np.int64]
    content: ByteArray

    def positions(self, blob: ByteArray) -> IntArray:
        """Return the positions of the cells, a view. Raises EngineError when `blob` isn't of this frame."""
        if len(blob) != self.size_bytes or not np.array_equal(blob[self.fixed], self.content):
            raise EngineError(
                f"reading {self.count} saved cells of llama.cpp: their bytes aren't laid out as this context's are",
                hint="their tokens will have to be computed",
            )
        sections = [self._cells(blob, at) for at in self.cells_at]
        first = sections[0][:, 0]
        if not all((s[:, 1] == 1).all() and (s is sections[0] or np.array_equal(s[:, 0], first)) for s in sections):
            raise EngineError(
                f"reading {self.count} saved cells of llama.cpp: its sections don't hold the same cells, each of one "
                "sequence",
                hint="their tokens will have to be computed",
            )
        return first

    def lay_out(self, blob: ByteArray, positions: IntArray) -> None:
        """Make `blob`, of `size_bytes`, one of cells at these positions; K and V stay whatever stands there."""
        blob[self.fixed] = self.content
        for at in self.cells_at:
            cells = self._cells(blob, at)
            cells[:, 0], cells[:, 1], cells[:, 2] = positions, 1, 0

    def arrays(self, blob: ByteArray) -> list[AnyArray]:
        """Return K and V of each section, as its `Stack` says."""
        size_bytes = np.dtype(self.kind).itemsize
        out = []
        for stack in self.stacks:
            rows, columns = (stack.width, self.count) if stack.transposed else (self.count, stack.width)
            step = _LAYER_HEAD_BYTES + rows * columns * size_bytes
            strides = (step, columns * size_bytes, size_bytes)
            out.append(np.ndarray((stack.layers, rows, columns), self.kind, blob.data, stack.at, strides))
        return out

    def _cells(self, blob: ByteArray, at: int) -> IntArray:
        """Return a section's cells: position, number of sequences, sequence."""
        found: IntArray = blob[at : at + self.count * CELL.itemsize].view("<i4").reshape(self.count, 3)
        return found


@lru_cache(maxsize=64)
def frame_of(shape: KvShape, layout: BlobLayout, count: int) -> Frame:
    """Return the frame of blobs of `count` > 0 cells. The layout must be `uniform`."""
    kind = VALUE_TYPES[shape.kv_type]
    size_bytes = layout.size_bytes(count)
    blob = np.zeros(size_bytes, np.uint8)
    fixed = [(0, 4)]
    HEAD.pack_into(blob.data, 0, MAGIC, 0)
    at, cells_at, stacks = HEAD.size, [], []
    for section, layers in enumerate(layout.section_layers):
        COUNTS.pack_into(blob.data, at, 1, count)
        cells_at.append(at + COUNTS.size)
        middle = cells_at[-1] + count * CELL.itemsize
        transposed = layout.transposed[section]
        COUNTS.pack_into(blob.data, middle, transposed, layers)
        fixed += [(at, COUNTS.size), (middle, COUNTS.size)]
        at = middle + COUNTS.size
        v_row_bytes = layout.v_row_bytes[layout.layers_of(section)][:1]
        for row_bytes, turned in zip((layout.k_row_bytes, *v_row_bytes), (False, transposed), strict=False):
            if layers:
                width = row_bytes // np.dtype(kind).itemsize
                stacks.append(Stack(at + _LAYER_HEAD_BYTES, layers, width, turned))
            for _ in range(layers):
                fixed.append((at, _LAYER_HEAD_BYTES))
                if turned:
                    COLUMNS_HEAD.pack_into(blob.data, at, TYPES[shape.kv_type], np.dtype(kind).itemsize, width)
                else:
                    ROWS_HEAD.pack_into(blob.data, at, TYPES[shape.kv_type], row_bytes)
                at += _LAYER_HEAD_BYTES + count * row_bytes
    assert at == size_bytes
    places = np.concatenate([np.arange(first, first + length) for first, length in fixed])
    return Frame(count, size_bytes, kind, tuple(cells_at), tuple(stacks), places, blob[places])
