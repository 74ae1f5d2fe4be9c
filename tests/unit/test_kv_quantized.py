"""KV as int8: what comes back is as near as 127 steps allow, for any values that KV may hold, in any layout of V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("llama_cpp")

from akashic_daemon.engine.llama_cpp.blob import BlobLayout, ByteArray, KvShape, parse_blob
from akashic_daemon.engine.llama_cpp.frame import Frame, frame_of
from akashic_daemon.engine.llama_cpp.quantized import positions_in, quantize, quantized_bytes, restore
from akashic_daemon.errors import EngineError

HEADS, DIM = 3, 16
WIDTH = HEADS * DIM
KINDS: dict[str, Any] = {"f16": np.float16, "f32": np.float32}
LAYOUTS = ["rows", "transposed", "two sections"]
Array = npt.NDArray[np.float64]


def form(kv_type: str, layout: str) -> tuple[KvShape, BlobLayout]:
    row = WIDTH * np.dtype(KINDS[kv_type]).itemsize
    if layout == "two sections":
        return KvShape(3, HEADS, DIM, kv_type, 2), BlobLayout(row, (1, 2), (row,) * 3, (True, True))
    return KvShape(3, HEADS, DIM, kv_type), BlobLayout(row, (3,), (row,) * 3, (layout == "transposed",))


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A blob whose K and V are whatever stood in its memory."""

    frame: Frame
    layout: BlobLayout
    data: ByteArray

    @property
    def arrays(self) -> list[npt.NDArray[Any]]:
        return self.frame.arrays(self.data)

    def cells(self, first: int, count: int) -> list[npt.NDArray[Any]]:
        which = slice(first, first + count)
        pairs = zip(self.frame.stacks, self.arrays, strict=True)
        return [a[:, :, which] if stack.transposed else a[:, which] for stack, a in pairs]


def a_blob(kv_type: str, layout: str, cells: int, first: int = 0) -> Made:
    shape, laid_out = form(kv_type, layout)
    frame = frame_of(shape, laid_out, cells)
    data = np.full(frame.size_bytes, 0xFF, np.uint8)
    frame.lay_out(data, np.arange(first, first + cells, dtype=np.int32)[::-1])
    return Made(frame, laid_out, data)


def fill(blob: Made, kind: str, seed: int = 3) -> None:
    chance = np.random.default_rng(seed)
    for array in blob.arrays:
        values = chance.standard_normal(array.shape)
        if kind == "outliers":
            values[..., -1] *= 1000
        elif kind == "tiny":
            values *= 2.0**-20
        elif kind == "mixed":
            values *= 2.0 ** chance.integers(-26, 12, array.shape)
            values[chance.random(array.shape) < 0.3] = 0
        elif kind == "zero":
            values[...] = 0
        array[...] = values


def packed(blob: Made) -> ByteArray:
    size = quantized_bytes(blob.frame)
    room = np.full(size + 1, 0xEE, np.uint8)
    quantize(blob.frame, blob.layout, blob.data, room[:size])
    assert room[size] == 0xEE
    return room[:size]


def half_a_step(array: npt.NDArray[Any]) -> Array:
    """Return how far each value may be off: half a step of its group of 32 rows, and f16's own rounding twice."""
    values = np.abs(array.astype(np.float64))
    out = np.empty_like(values)
    for start in range(0, values.shape[1], 32):
        largest = values[:, start : start + 32].max(axis=1, keepdims=True)
        step = largest / 127 * (1 + 2**-10) + 2.0**-24  # scales are f16
        out[:, start : start + 32] = step / 2 * 1.0001
    if array.dtype == np.float16:
        out += np.maximum(values, out) * 2.0**-10 + 2.0**-25
    return out


@pytest.mark.parametrize("kv_type", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["plain", "outliers", "tiny", "mixed", "zero"])
@pytest.mark.parametrize("cells", [1, 20, 32, 33, 128])
def test_what_comes_back_is_within_half_a_step(kv_type: str, layout: str, kind: str, cells: int) -> None:
    blob = a_blob(kv_type, layout, cells)
    fill(blob, kind)
    payload = packed(blob)
    positions = positions_in(payload, blob.frame, blob.layout)
    assert positions is not None
    assert positions.tolist() == [*range(cells)][::-1]
    back = a_blob(kv_type, layout, cells)
    restore(payload, cells, back.arrays)
    for before, after in zip(blob.arrays, back.arrays, strict=True):
        error = np.abs(after.astype(np.float64) - before.astype(np.float64))
        assert (error <= half_a_step(before)).all()
        if kind == "zero":
            assert not after.any()


@pytest.mark.parametrize("kv_type", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_runs_are_put_beside_each_other_and_touch_nothing_else(kv_type: str, layout: str) -> None:
    parts = [a_blob(kv_type, layout, cells) for cells in (20, 33)]
    for seed, part in enumerate(parts):
        fill(part, "plain", seed)
    whole = a_blob(kv_type, layout, 60)
    restore(packed(parts[0]), 20, whole.cells(3, 20))
    restore(packed(parts[1]), 33, whole.cells(23, 33))
    for part, first, count in zip(parts, (3, 23), (20, 33), strict=True):
        alone = a_blob(kv_type, layout, count)
        restore(packed(part), count, alone.arrays)
        for beside, one in zip(whole.cells(first, count), alone.arrays, strict=True):
            np.testing.assert_array_equal(beside, one)
    for untouched in [*whole.cells(0, 3), *whole.cells(56, 4)]:
        assert np.isnan(untouched).all(), "0xFF bytes are NaN"


@pytest.mark.parametrize("kv_type", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_frame_lays_out_is_what_the_parser_reads(kv_type: str, layout: str) -> None:
    blob = a_blob(kv_type, layout, 20, first=7)
    fill(blob, "plain")
    parsed = parse_blob(blob.data, form(kv_type, layout)[0])
    assert parsed.layout == blob.layout
    assert parsed.positions().tolist() == blob.frame.positions(blob.data).tolist() == [*range(26, 6, -1)]
    keys = [array for stack, array in zip(blob.frame.stacks, blob.arrays, strict=True)][::2]
    assert [k.tobytes() for k in parsed.keys] == [layer.tobytes() for array in keys for layer in array]
    values = blob.arrays[1::2]
    assert [v.tobytes() for v in parsed.values] == [layer.tobytes() for array in values for layer in array]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_fixed_byte_of_a_blob_is_looked_at(layout: str) -> None:
    blob = a_blob("f32", layout, 3)
    frame = blob.frame
    own = {*range(4, 8)}
    for at in frame.cells_at:
        own |= {at + 12 * n + b for n in range(3) for b in (0, 1, 2, 3, 8, 9, 10, 11)}
    kv = sum(array.nbytes for array in blob.arrays)
    changed = 0
    for at in range(len(blob.data)):
        data = blob.data.copy()
        data[at] ^= 1
        try:
            frame.positions(data)
        except EngineError:
            changed += 1
    second = 12 if layout == "two sections" else 0  # positions that then differ from the first section's
    both = second + (12 if layout == "two sections" else 0)
    assert changed == len(blob.data) - kv - len(own) + both


def test_q8_takes_a_little_more_than_half_of_f16() -> None:
    shape, layout = form("f16", "rows")
    frame = frame_of(shape, layout, 128)
    assert 0.52 < quantized_bytes(frame) / frame.size_bytes < 0.54


@pytest.mark.parametrize("kv_type", KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 40000.0])
def test_a_value_that_no_working_model_holds_is_refused(kv_type: str, value: float) -> None:
    blob = a_blob(kv_type, "rows", 40)
    fill(blob, "plain")
    blob.arrays[1][2, 35, 7] = value
    with pytest.raises(EngineError, match="storing KV as q8"):
        packed(blob)


def test_a_payload_of_another_layout_is_not_this_models() -> None:
    blob = a_blob("f16", "rows", 20)
    fill(blob, "plain")
    payload = packed(blob)
    for kv_type, layout in (("f16", "transposed"), ("f32", "rows"), ("f16", "two sections")):
        shape, other = form(kv_type, layout)
        assert positions_in(payload, frame_of(shape, other, 20), other) is None
