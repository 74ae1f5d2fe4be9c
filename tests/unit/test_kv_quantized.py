"""KV as int8: what comes back is as near as 127 steps allow, for any values that KV may hold, in any layout of V."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("llama_cpp")

from akashic_daemon.engine.llama_cpp.blob import Blob, BlobLayout, KvShape, blank_blob
from akashic_daemon.engine.llama_cpp.quantized import positions_in, quantize, quantized_bytes, restore
from akashic_daemon.engine.llama_cpp.stacks import stacks_of
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


def a_blob(kv_type: str, layout: str, cells: int, first: int = 0) -> Blob:
    shape, laid_out = form(kv_type, layout)
    positions = np.arange(first, first + cells, dtype=np.int32)[::-1]
    return blank_blob(shape, laid_out, positions, np.full(laid_out.size_bytes(cells), 0xFF, np.uint8))


def arrays(blob: Blob) -> list[npt.NDArray[Any]]:
    return [stack.data.view(KINDS[blob.shape.kv_type]) for stack in stacks_of(blob)]


def fill(blob: Blob, kind: str, seed: int = 3) -> None:
    chance = np.random.default_rng(seed)
    for array in arrays(blob):
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


def packed(blob: Blob) -> npt.NDArray[np.uint8]:
    assert blob.layout is not None
    size = quantized_bytes(blob.shape, blob.layout, len(blob))
    room = np.full(size + 1, 0xEE, np.uint8)
    quantize(blob, room[:size])
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
    assert blob.layout is not None
    positions = positions_in(payload, blob.layout, cells)
    assert positions is not None
    assert positions.tolist() == blob.positions().tolist()
    back = a_blob(kv_type, layout, cells)
    restore(payload, back, 0, cells)
    for before, after in zip(arrays(blob), arrays(back), strict=True):
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
    restore(packed(parts[0]), whole, 3, 20)
    restore(packed(parts[1]), whole, 23, 33)
    alone = [a_blob(kv_type, layout, len(part)) for part in parts]
    for part, one in zip(parts, alone, strict=True):
        restore(packed(part), one, 0, len(part))
    for stack, first, second in zip(stacks_of(whole), stacks_of(alone[0]), stacks_of(alone[1]), strict=True):
        assert (stack.cells(3, 20) == first.data).all()
        assert (stack.cells(23, 33) == second.data).all()
        assert (stack.cells(0, 3) == 0xFF).all()
        assert (stack.cells(56, 4) == 0xFF).all()


def test_q8_takes_a_little_more_than_half_of_f16() -> None:
    shape, layout = form("f16", "rows")
    assert 0.52 < quantized_bytes(shape, layout, 128) / layout.size_bytes(128) < 0.54


@pytest.mark.parametrize("kv_type", KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 40000.0])
def test_a_value_that_no_working_model_holds_is_refused(kv_type: str, value: float) -> None:
    blob = a_blob(kv_type, "rows", 40)
    fill(blob, "plain")
    arrays(blob)[1][2, 35, 7] = value
    with pytest.raises(EngineError, match="storing KV as q8"):
        packed(blob)


def test_a_payload_of_another_layout_is_not_this_models() -> None:
    blob = a_blob("f16", "rows", 20)
    fill(blob, "plain")
    payload = packed(blob)
    for kv_type, layout in (("f16", "transposed"), ("f32", "rows"), ("f16", "two sections")):
        assert positions_in(payload, form(kv_type, layout)[1], 20) is None
