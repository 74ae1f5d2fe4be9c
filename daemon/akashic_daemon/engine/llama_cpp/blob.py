"""A saved sequence of llama.cpp (sequence state, version 3): read with suspicion, and moved to other positions in place.

    u32 magic, i32 sequence, then one section, or two: full and sliding-window layers
    u32 streams, u32 cells, cells x {i32 position, u32 sequences = 1, i32 sequence},
    u32 V transposed, u32 layers, layers x {i32 type, u64 row bytes, cells x row}  (K)
    layers x {i32 type, u64 row bytes, cells x row}                                 (V)
    or, transposed, layers x {i32 type, u32 value bytes, u32 width, width x cells x value}

Cells come in the cache's order, not by position. llama.cpp loads a same-shape blob of any model without complaint, so
whatever isn't as this model's must be is an EngineError here. All views point into the caller's buffer: nothing is
copied, and what is written changes the blob.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from akashic_daemon.engine.llama_cpp.rope import FloatArray, Rope, heads_of
from akashic_daemon.errors import EngineError, Unsupported

ByteArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int32]

MAGIC = 0xAF143CD8
"""Of this layout: llama.cpp changes it whenever the layout of sequence states changes."""
HEAD = struct.Struct("<Ii")
COUNTS = struct.Struct("<II")
CELL = np.dtype([("position", "<i4"), ("sequences", "<u4"), ("sequence", "<i4")])
ROWS_HEAD = struct.Struct("<iQ")
COLUMNS_HEAD = struct.Struct("<iII")
TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
"""ggml's numbers."""
_BLOCK = 32
_Q8_0 = np.dtype([("scale", "<f2"), ("values", "i1", (_BLOCK,))])
_LAST_POSITION = 2**31 - 1
_CHUNK_VALUES = 1 << 16
"""Rotated at once: what stays in a core's cache as float32."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """What the loaded model's blobs must look like. `kv_type` is a name of the engine's settings.

    `sections` is 2 for models with sliding-window layers: llama.cpp keeps their cells in a cache of their own.
    """

    layers: int
    kv_heads: int
    head_dim: int
    kv_type: str
    sections: int = 1

    @property
    def k_row_bytes(self) -> int:
        """Bytes of one cell's K in one layer."""
        values = self.kv_heads * self.head_dim
        return values // _BLOCK * _Q8_0.itemsize if self.kv_type == "q8_0" else values * (4 if self._f32 else 2)

    @property
    def _f32(self) -> bool:
        return self.kv_type == "f32"


def kv_shape_of(metadata: Mapping[str, str], layers: int, sliding_window_tokens: int, kv_type: str) -> KvShape | str:
    """Return the shape of a loaded model's blobs, or why they can't be understood."""
    heads = heads_of(metadata)
    if isinstance(heads, str):
        return heads
    return KvShape(layers, *heads, kv_type, sections=2 if sliding_window_tokens > 0 else 1)


@dataclass(frozen=True, slots=True)
class BlobLayout:
    """How blobs of one context look whatever they hold: each section's layers, and how its V lies."""

    k_row_bytes: int
    section_layers: tuple[int, ...]
    v_row_bytes: tuple[int, ...]
    """Of each layer, in the blob's order: what V of one cell takes."""
    transposed: tuple[bool, ...]
    """Of each section."""

    @property
    def uniform(self) -> bool:
        """Tell if V is equally wide in all layers of a section."""
        return all(len(set(self.v_row_bytes[self.layers_of(s)])) <= 1 for s in range(len(self.section_layers)))

    def layers_of(self, section: int) -> slice:
        """Return which of the blob's layers a section holds."""
        first = sum(self.section_layers[:section])
        return slice(first, first + self.section_layers[section])

    def size_bytes(self, cells: int) -> int:
        """Return what a blob of so many cells takes."""
        heads = HEAD.size + sum(2 * COUNTS.size + 2 * n * ROWS_HEAD.size for n in self.section_layers)
        rows = sum(self.k_row_bytes + v for v in self.v_row_bytes)
        return heads + cells * (len(self.section_layers) * CELL.itemsize + rows)


@dataclass(frozen=True, slots=True, eq=False)
class Blob:
    """A checked blob: views, all. Each of `cells` is a section's record array; both sections hold the same cells.

    `keys[layer]` is a layer's K rows as bytes [cells, row], in the blob's order of layers; `values[layer]` its V as
    bytes, [cells, row] or, in a transposed section, [width, cells x value]. An empty blob has no layout.
    """

    shape: KvShape
    cells: tuple[npt.NDArray[np.void], ...]
    keys: tuple[ByteArray, ...]
    values: tuple[ByteArray, ...] = ()
    layout: BlobLayout | None = None

    def __len__(self) -> int:
        return len(self.cells[0])

    def positions(self) -> IntArray:
        """Return a copy of each cell's position, in cell order."""
        return cast(IntArray, self.cells[0]["position"].astype(np.int32))

    def relabel(self, cell: int, position: int) -> None:
        """Say that a cell stands at `position`; its K stays as it is."""
        for section in self.cells:
            section["position"][cell] = position

    def reposition(self, positions: npt.NDArray[np.integer], rope: Rope) -> int:
        """Move each cell to its place in `positions` (cell order): label and K. Return how many cells moved.

        Cells that stay keep their bits. Raises EngineError when `positions` or `rope` don't fit; the blob is unchanged
        then.
        """
        positions = np.asarray(positions)
        self._check_move(positions, rope)
        delta = positions.astype(np.int64) - self.positions()
        moved = np.flatnonzero(delta)
        if len(moved):
            self._turn(moved, delta[moved], rope)
            for section in self.cells:
                section["position"][moved] = positions[moved]
        return len(moved)

    def _check_move(self, positions: npt.NDArray[np.integer], rope: Rope) -> None:
        doing = f"moving a saved sequence of {len(self)} cells"
        if positions.shape != (len(self),):
            raise EngineError(f"{doing}: positions of shape {positions.shape} were given")
        if rope.head_dim != self.shape.head_dim:
            raise EngineError(f"{doing}: its heads are {self.shape.head_dim} wide, not {rope.head_dim}")
        if len(self) and not 0 <= positions.min() <= positions.max() <= _LAST_POSITION:
            raise EngineError(f"{doing}: positions {positions.min()} to {positions.max()} are out of range")
        if len(np.unique(positions)) != len(self):
            raise EngineError(f"{doing}: two of them would stand at one position")

    def keys_as_f32(self, layer: int) -> FloatArray:
        """Return a copy of a layer's K: float32 [cells, kv_heads, head_dim]."""
        return self._read(self.keys[layer], slice(None))

    def _turn(self, moved: npt.NDArray[np.int64], delta: npt.NDArray[np.int64], rope: Rope) -> None:
        ropes = [rope.of_layer(layer) for layer in range(len(self.keys))]
        phasors = {id(one): one.phasors(delta) for one in set(ropes)}
        step = max(1, _CHUNK_VALUES // (self.shape.kv_heads * self.shape.head_dim))
        for at in range(0, len(moved), step):
            which = _as_slice(moved[at : at + step])
            for rows, one in zip(self.keys, ropes, strict=True):
                if one.frequencies.any():
                    k = self._read(rows, which)
                    one.turn(k, phasors[id(one)][at : at + step])
                    self._write(rows, which, k)

    def _read(self, rows: ByteArray, which: slice | npt.NDArray[np.int64]) -> FloatArray:
        heads = (-1, self.shape.kv_heads, self.shape.head_dim)
        if self.shape.kv_type != "q8_0":
            return cast(FloatArray, self._values(rows)[which].astype(np.float32).reshape(heads))
        blocks = rows.view(_Q8_0)[which]
        values = blocks["values"].astype(np.float32) * blocks["scale"].astype(np.float32)[..., None]
        return cast(FloatArray, values.reshape(heads))

    def _write(self, rows: ByteArray, which: slice | npt.NDArray[np.int64], k: FloatArray) -> None:
        if self.shape.kv_type != "q8_0":
            self._values(rows)[which] = k.reshape(len(k), -1)
            return
        blocks = rows.view(_Q8_0)
        blocks[which] = _quantized(k.reshape(len(k), blocks.shape[1], _BLOCK))

    def _values(self, rows: ByteArray) -> npt.NDArray[np.floating]:
        return rows.view("<f4" if self.shape.kv_type == "f32" else "<f2")


def _as_slice(indices: npt.NDArray[np.int64]) -> slice | npt.NDArray[np.int64]:
    first, last = int(indices[0]), int(indices[-1])
    return slice(first, last + 1) if last - first + 1 == len(indices) else indices


def _quantized(values: FloatArray) -> npt.NDArray[np.void]:
    """Return float32 [cells, blocks, 32] as q8_0, rounding as ggml does: halves go away from zero."""
    scale = np.abs(values).max(axis=-1) / 127
    steps = values * np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)[..., None]
    out = np.empty(scale.shape, _Q8_0)
    out["scale"] = scale
    out["values"] = np.trunc(steps + np.copysign(0.5, steps))
    return out


def parse_blob(data: bytearray | memoryview | ByteArray, shape: KvShape) -> Blob:
    """Return views into `data`, which must be writable for what writes.

    Raises EngineError naming what isn't as it must be, Unsupported for a KV type that isn't understood.
    """
    if shape.kv_type not in TYPES:
        raise Unsupported(
            f"saved sequences whose KV is {shape.kv_type} can't be read", hint=f"use one of {', '.join(TYPES)}"
        )
    reader = _Reader(np.frombuffer(data, np.uint8))
    magic, _sequence = reader.take(HEAD)
    if magic != MAGIC:
        raise _odd(f"it begins with {magic:#010x}, not {MAGIC:#010x}; llama.cpp's format may have changed")
    sections = [_section(reader, shape) for _ in range(shape.sections)]
    reader.finish()
    cells = tuple(section.cells for section in sections)
    keys = tuple(rows for section in sections for rows in section.keys)
    values = tuple(rows for section in sections for rows in section.values)
    if len(cells[0]) and len(keys) != shape.layers:
        raise _odd(f"it has {len(keys)} layers; the model has {shape.layers}")
    if not all(np.array_equal(section["position"], cells[0]["position"]) for section in cells):
        raise _odd("its sliding-window layers hold other cells than the full ones")
    if not keys:
        return Blob(shape, cells, (np.zeros((0, shape.k_row_bytes), np.uint8),) * shape.layers)
    return Blob(shape, cells, keys, values, _layout(shape, sections))


@dataclass(frozen=True, slots=True, eq=False)
class _Section:
    cells: npt.NDArray[np.void]
    keys: tuple[ByteArray, ...] = ()
    values: tuple[ByteArray, ...] = ()
    transposed: bool = False


def _layout(shape: KvShape, sections: Sequence[_Section]) -> BlobLayout:
    count = len(sections[0].cells)
    return BlobLayout(
        shape.k_row_bytes,
        tuple(len(section.keys) for section in sections),
        tuple(rows.size // count for section in sections for rows in section.values),
        tuple(section.transposed for section in sections),
    )


def _section(reader: _Reader, shape: KvShape) -> _Section:
    streams, count = reader.take(COUNTS)
    if streams != 1:
        raise _odd(f"it has {streams} streams, not 1")
    cells = reader.rows(count, CELL.itemsize).view(CELL).reshape(-1)
    if not np.all(cells["sequences"] == 1) or not np.all(cells["position"] >= 0):
        raise _odd("its cells don't hold one sequence and a position each (M-RoPE positions take more room)")
    if count == 0:
        return _Section(cells)
    transposed, layers = reader.take(COUNTS)
    if layers > shape.layers or transposed not in (0, 1):
        raise _odd(f"it has {layers} layers and V layout {transposed}; the model has {shape.layers} layers")
    keys = tuple(_key_rows(reader, layer, count, shape) for layer in range(layers))
    values = tuple(_value_rows(reader, layer, count, shape, transposed=bool(transposed)) for layer in range(layers))
    return _Section(cells, keys, values, bool(transposed))


def _key_rows(reader: _Reader, layer: int, count: int, shape: KvShape) -> ByteArray:
    kind, row_bytes = reader.take(ROWS_HEAD)
    if kind != TYPES.get(shape.kv_type) or row_bytes != shape.k_row_bytes:
        raise _odd(
            f"K of layer {layer} has ggml type {kind} and {row_bytes} bytes a cell, "
            f"not {shape.kv_type} and {shape.k_row_bytes} bytes"
        )
    return reader.rows(count, row_bytes)


def _value_rows(reader: _Reader, layer: int, count: int, shape: KvShape, *, transposed: bool) -> ByteArray:
    if transposed:
        kind, value_bytes, width = reader.take(COLUMNS_HEAD)
        rows, row_bytes = width, count * value_bytes
    else:
        kind, row_bytes = reader.take(ROWS_HEAD)
        rows = count
    if kind != TYPES.get(shape.kv_type):
        raise _odd(f"V of layer {layer} has ggml type {kind}, not {shape.kv_type}")
    return reader.rows(rows, row_bytes)


class _Reader:
    """Goes through a blob and refuses to go past its end."""

    def __init__(self, buffer: ByteArray) -> None:
        self._buffer = buffer
        self._at = 0

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self._next(form.size).tobytes())

    def rows(self, count: int, row_bytes: int) -> ByteArray:
        return self._next(count * row_bytes).reshape(count, row_bytes)

    def _next(self, size_bytes: int) -> ByteArray:
        end = self._at + size_bytes
        if end > len(self._buffer):
            raise _odd(f"it ends after {len(self._buffer):,} bytes, but goes on to {end:,}")
        part = self._buffer[self._at : end]
        self._at = end
        return part

    def finish(self) -> None:
        if self._at != len(self._buffer):
            raise _odd(f"{len(self._buffer) - self._at:,} bytes follow its end")


def _odd(what: str) -> EngineError:
    return EngineError(f"reading a saved sequence of llama.cpp: {what}", hint="its tokens will have to be computed")
