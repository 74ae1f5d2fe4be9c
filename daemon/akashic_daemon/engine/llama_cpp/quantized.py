"""K and V as int8 with one f16 scale for each 32 values: what storage `q8` holds. Bytes in, bytes out; no llama.cpp.

    u32 of the layout, i32 position x cells, then for each section K and V: f16 scales, i8 values, all layers together

32 values that share a scale are one channel of 32 cells; where V is transposed, 32 channels of one cell. So that numpy goes
along memory, and a channel with outliers coarsens no other. The last group may be smaller. Halves are unpacked and packed
by integer arithmetic: numpy's own conversion takes three times as long.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from akashic_daemon.engine.llama_cpp.blob import BlobLayout, ByteArray, IntArray
from akashic_daemon.engine.llama_cpp.frame import Frame
from akashic_daemon.errors import EngineError

AnyArray = npt.NDArray[Any]

_GROUP = 32
_LARGEST = 2.0**15
"""Above this a value is no KV of a working model, and f16 couldn't hold what comes back."""
_CHUNK_VALUES = 1 << 17
_TO_MOVED = np.float32(2.0**-112)
"""What a half is worth when its bits stand where float32 has them."""
_SMALLEST = np.float32(2.0**-136)
"""The smallest half, so moved."""
_HALF_FIELDS = np.int32(-0x70002000)
"""Sign, exponent and fraction of a half that was moved there; the rest are copies of its sign."""


def quantized_bytes(frame: Frame) -> int:
    """Return what the cells of a blob of this frame take."""
    total = 4 + 4 * frame.count
    for stack in frame.stacks:
        rows, columns = (stack.width, frame.count) if stack.transposed else (frame.count, stack.width)
        total += stack.layers * columns * (rows + 2 * -(-rows // _GROUP))
    return total


def quantize(frame: Frame, layout: BlobLayout, blob: ByteArray, into: ByteArray) -> None:
    """Write a blob's cells, in its order, into `into`, of exactly `quantized_bytes`. Raises EngineError for odd values."""
    into[:4].view("<u4")[0] = _mark(layout)
    at = 4 + 4 * frame.count
    into[4:at].view("<i4")[:] = frame.positions(blob)
    for source in frame.arrays(blob):
        scales, values, at = _parts(into, at, source.shape)
        for chunk, groups in _pieces(source.shape):
            _quantize(_grouped(source[chunk], groups), _grouped(values[chunk], groups), _scales(scales[chunk], groups))


def positions_in(payload: ByteArray, frame: Frame, layout: BlobLayout) -> IntArray | None:
    """Return the positions of the cells in a payload; None when it isn't one of this frame and layout."""
    if len(payload) != quantized_bytes(frame) or payload[:4].view("<u4")[0] != _mark(layout):
        return None
    found: IntArray = payload[4 : 4 + 4 * frame.count].view("<i4")
    return found


def restore(payload: ByteArray, count: int, targets: Sequence[AnyArray]) -> None:
    """Fill K and V of so many cells, as `Frame.arrays` orders them, with those in `payload`."""
    at = 4 + 4 * count
    for target in targets:
        scales, values, at = _parts(payload, at, target.shape)
        for chunk, groups in _pieces(target.shape):
            _restore(_grouped(values[chunk], groups), _scales(scales[chunk], groups), _grouped(target[chunk], groups))


def _mark(layout: BlobLayout) -> int:
    said = (layout.k_row_bytes, layout.section_layers, layout.v_row_bytes, layout.transposed)
    return zlib.crc32(repr(said).encode())


def _parts(data: ByteArray, at: int, shape: tuple[int, ...]) -> tuple[AnyArray, AnyArray, int]:
    """Return views of the scales and the values of an array of this shape, and where they end."""
    layers, rows, columns = shape
    groups = -(-rows // _GROUP)
    middle = at + 2 * layers * groups * columns
    end = middle + layers * rows * columns
    scales = data[at:middle].view("<f2").reshape(layers, groups, columns)
    return scales, data[middle:end].view(np.int8).reshape(shape), end


def _pieces(shape: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """Yield parts that a core's cache holds: which layers, and which groups of 32 rows; the smaller last one alone."""
    layers, rows, columns = shape
    whole = rows // _GROUP
    each = max(1, min(whole, _CHUNK_VALUES // (_GROUP * columns)))
    for groups in [*(slice(g, min(whole, g + each)) for g in range(0, whole, each)), slice(whole, whole + 1)]:
        taken = min(rows, groups.stop * _GROUP) - groups.start * _GROUP
        step = max(1, _CHUNK_VALUES // max(1, taken * columns))
        for layer in range(0, layers if taken else 0, step):
            yield slice(layer, layer + step), groups


def _grouped(values: AnyArray, groups: slice) -> AnyArray:
    """Return [layers, rows, columns] as [layers, groups, rows of a group, columns]."""
    layers, rows, columns = values.shape
    part = values[:, groups.start * _GROUP : min(rows, groups.stop * _GROUP)]
    return part.reshape(layers, groups.stop - groups.start, -1, columns)


def _scales(scales: AnyArray, groups: slice) -> AnyArray:
    return scales[:, groups, None]


def _quantize(source: AnyArray, values: AnyArray, scales: AnyArray) -> None:
    if source.dtype == np.float16:
        moved = _moved_halves(source)
        largest = _moved_halves(np.bitwise_and(source.view(np.int16), np.int16(0x7FFF)).max(axis=2, keepdims=True))
    else:
        moved = np.asarray(source * _TO_MOVED)
        largest = np.abs(moved).max(axis=2, keepdims=True)
    if not largest.max() < _LARGEST * _TO_MOVED:
        raise EngineError(
            f"storing KV as q8: it holds {float(largest.max() / _TO_MOVED)}, which isn't below {_LARGEST:,.0f}",
            hint="store it as computed",
        )
    bits = (largest * np.float32(1 / 127)).view(np.int32)
    bits += 0x1FFF  # up, or the largest value would not fit
    bits >>= 13
    scales.view(np.int16)[...] = bits
    bits <<= 13
    step = np.maximum(bits.view(np.float32), _SMALLEST)  # where all are zero, any step will do
    moved /= step
    np.rint(moved, out=values, casting="unsafe")


def _restore(values: AnyArray, scales: AnyArray, target: AnyArray) -> None:
    out = values.astype(np.float32)
    step = _moved_halves(scales)
    if target.dtype != np.float16:
        np.multiply(out, step / _TO_MOVED, out=target)
        return
    out *= step
    bits = out.view(np.int32)
    bits += 0x1000  # half of what is cut off
    bits >>= 13
    sign = values.astype(np.int16)
    sign &= -0x8000
    half = bits.astype(np.int16)
    half |= sign
    target.view(np.int16)[...] = half


def _moved_halves(halves: AnyArray) -> AnyArray:
    """Return f16 as float32, multiplied by `_TO_MOVED`: the bits of a half where float32 has them."""
    bits = halves.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= _HALF_FIELDS
    return bits.view(np.float32)
