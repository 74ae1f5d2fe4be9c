"""Saved sequences: what isn't as this model's must be is refused; moving changes labels and K of what moves, no more."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")

from akashic_daemon.engine.llama_cpp.blob import Blob, KvShape, kv_shape_of, parse_blob
from akashic_daemon.engine.llama_cpp.rope import Layout, Rope
from akashic_daemon.engine.llama_cpp.rotation_check import Findings, examine, probe_positions
from akashic_daemon.errors import EngineError, Unsupported
from llama_lowlevel import bare
from tiny_gguf import Shape, write_tiny_gguf

TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
Q8_0 = np.dtype([("scale", "<f2"), ("values", "i1", (32,))])
HEADS, DIM, LAYERS = 2, 32, 2
WINDOW = 1024


def shape_of(kv_type: str) -> KvShape:
    return KvShape(LAYERS, HEADS, DIM, kv_type)


def rope_for(layout: Layout = Layout.NORM, rotated: int = DIM, mixing: int = 0) -> Rope:
    return Rope(10000.0 ** (-np.arange(0, rotated, 2) / rotated), layout, DIM, mixing)


def some_rows(cells: int, kv_type: str, seed: int) -> bytes:
    chance = np.random.default_rng(seed)
    if kv_type != "q8_0":
        return chance.standard_normal((cells, HEADS * DIM)).astype("<f4" if kv_type == "f32" else "<f2").tobytes()
    blocks = np.zeros((cells, HEADS * DIM // 32), Q8_0)
    blocks["scale"] = chance.uniform(0.01, 0.02, blocks.shape)
    blocks["values"] = chance.integers(-127, 128, (*blocks.shape, 32))
    blocks["values"][..., 0] = 127
    return blocks.tobytes()


def make_blob(positions: Sequence[int], kv_type: str = "f32", *, transposed: bool = False, **odd: Any) -> bytearray:
    """Write the layout down independently; `odd` overrides a field."""
    field: dict[str, Any] = {"magic": 0xAF143CD8, "streams": 1, "holders": 1, "layers": LAYERS, "more": b""}
    field.update({"type": TYPES[kv_type]} | odd)
    cells = len(positions)
    out = [struct.pack("<IiII", field["magic"], 5, field["streams"], cells)]
    out += [struct.pack("<iIi", p, field["holders"], 5) for p in positions]
    if cells:
        out.append(struct.pack("<II", transposed, field["layers"]))
        row = len(some_rows(1, kv_type, 0))
        for n in range(LAYERS):
            out += [struct.pack("<iQ", field["type"], field.get("row", row)), some_rows(cells, kv_type, n)]
        for n in range(LAYERS):
            if transposed:
                out.append(struct.pack("<iII", TYPES[kv_type], row // (HEADS * DIM), HEADS * DIM))
            else:
                out.append(struct.pack("<iQ", field.get("v_type", TYPES[kv_type]), row))
            out.append(some_rows(cells, kv_type, 10 + n))
    return bytearray(b"".join(out) + field["more"])


def keys_of(data: bytearray, kv_type: str) -> list[npt.NDArray[np.float32]]:
    parsed = parse_blob(data, shape_of(kv_type))
    return [parsed.keys_as_f32(layer) for layer in range(LAYERS)]


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_cells_and_keys_are_read_where_they_stand(kv_type: str, transposed: bool) -> None:
    if transposed and kv_type == "q8_0":
        pytest.skip("llama.cpp doesn't transpose a quantized V")
    data = make_blob([4, 0, 9], kv_type, transposed=transposed)
    blob = parse_blob(data, shape_of(kv_type))
    assert blob.positions().tolist() == [4, 0, 9]
    assert [k.tobytes() for k in blob.keys] == [some_rows(3, kv_type, n) for n in range(LAYERS)]


def test_an_empty_sequence_is_a_blob_without_layers() -> None:
    blob = parse_blob(make_blob([]), shape_of("f32"))
    assert len(blob) == 0
    assert blob.reposition(np.zeros(0, np.int32), rope_for()) == 0


@pytest.mark.parametrize(
    ("odd", "names"),
    [
        ({"magic": 0xAF143CD7}, "0xaf143cd7"),
        ({"streams": 2}, "2 streams"),
        ({"holders": 2}, "one sequence"),
        ({"layers": 3}, "3 layers"),
        ({"type": 1}, "K of layer 0 has ggml type 1"),
        ({"row": 128}, "128 bytes a cell"),
        ({"v_type": 1}, "V of layer 0"),
        ({"more": b"x"}, "1 bytes follow"),
    ],
)
def test_what_differs_from_this_model_is_named(odd: dict[str, Any], names: str) -> None:
    with pytest.raises(EngineError, match=names):
        parse_blob(make_blob([0, 1], **odd), shape_of("f32"))


def test_a_blob_of_a_wider_or_other_typed_model_is_refused() -> None:
    for shape in (KvShape(LAYERS, 4, DIM, "f32"), KvShape(1, HEADS, DIM, "f32"), shape_of("f16"), shape_of("q8_0")):
        with pytest.raises(EngineError, match="reading a saved sequence"):
            parse_blob(make_blob([0, 1]), shape)


def test_a_kv_type_that_is_not_understood_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="q4_0"):
        parse_blob(make_blob([0]), shape_of("q4_0"))


def test_a_blob_cut_anywhere_is_refused() -> None:
    data = make_blob([3, 4])
    for length in [*range(80), *range(80, len(data), 97), len(data) - 1]:
        with pytest.raises(EngineError, match="reading a saved sequence"):
            parse_blob(data[:length], shape_of("f32"))


@given(at=st.integers(0, 39), value=st.integers(0, 255))
def test_a_changed_byte_in_the_head_is_refused_or_only_changes_a_label(at: int, value: int) -> None:
    data = make_blob([3, 4])
    data[at] = value
    try:
        blob = parse_blob(data, shape_of("f32"))
    except EngineError:
        return
    assert [k.tobytes() for k in blob.keys] == [some_rows(2, "f32", n) for n in range(LAYERS)]


def test_relabelling_changes_one_label_and_nothing_else() -> None:
    data = make_blob([7, 8, 9])
    parse_blob(data, shape_of("f32")).relabel(1, 41)
    assert data == make_blob([7, 41, 9])


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(("rotated", "mixing"), [(DIM, 0), (20, 0), (DIM, 32)])
def test_moved_cells_turn_and_the_others_keep_their_bits(
    kv_type: str, layout: Layout, rotated: int, mixing: int
) -> None:
    old, new = [5, 0, 6, 9, 100], [5, 40, 6, 2, 30]
    data, rope = make_blob(old, kv_type), rope_for(layout, rotated, mixing)
    before, untouched = keys_of(data, kv_type), bytes(data)
    blob = parse_blob(data, shape_of(kv_type))
    assert blob.reposition(np.array(new, np.int32), rope) == 3
    assert parse_blob(data, shape_of(kv_type)).positions().tolist() == new
    step = {"f32": 1e-6, "f16": 2**-10, "q8_0": 1 / 127}[kv_type]
    for layer, (was, now) in enumerate(zip(before, keys_of(data, kv_type), strict=True)):
        wanted = rope.rotate(was, np.array(new) - np.array(old))
        assert np.abs(now - wanted).max() < step * np.abs(wanted).max()
        assert not np.allclose(now[1], was[1], atol=0.1 * np.abs(was).max())
        original = parse_blob(bytearray(untouched), shape_of(kv_type)).keys[layer]
        for cell in (0, 2):
            assert blob.keys[layer][cell].tobytes() == original[cell].tobytes()
    values = len(data) - LAYERS * (12 + len(some_rows(5, kv_type, 0)))
    assert data[values:] == untouched[values:], "V changed"


def test_moving_many_cells_in_several_chunks_is_moving_each_alone() -> None:
    old = np.random.default_rng(3).permutation(3000)
    new = np.where(old % 3 == 0, old, 3000 + 2 * old).astype(np.int32)
    data, rope = make_blob(old.tolist(), "f16"), rope_for()
    before = keys_of(data, "f16")
    assert parse_blob(data, shape_of("f16")).reposition(new, rope) == np.count_nonzero(new != old)
    for was, now in zip(before, keys_of(data, "f16"), strict=True):
        assert np.array_equal(now, rope.rotate(was, new - old).astype(np.float16))


@pytest.mark.parametrize("kv_type", TYPES)
def test_moving_there_and_back_gives_k_back_within_rounding(kv_type: str) -> None:
    data = make_blob(range(50), kv_type)
    before = keys_of(data, kv_type)
    blob = parse_blob(data, shape_of(kv_type))
    blob.reposition(np.arange(50) + 777, rope_for())
    blob.reposition(np.arange(50), rope_for())
    step = {"f32": 1e-6, "f16": 2**-9, "q8_0": 2 / 127}[kv_type]
    for was, now in zip(before, keys_of(data, kv_type), strict=True):
        assert np.abs(now - was).max() < step * np.abs(was).max()


def test_an_all_zero_k_stays_zero_when_quantized() -> None:
    data = make_blob([1], "q8_0")
    blob = parse_blob(data, shape_of("q8_0"))
    for rows in blob.keys:
        rows[...] = 0
    blob.reposition(np.array([5]), rope_for())
    assert not any(rows.any() for rows in blob.keys)


def test_positions_or_a_rope_that_do_not_fit_leave_the_blob_alone() -> None:
    data = make_blob([0, 1])
    blob, before = parse_blob(data, shape_of("f32")), bytes(data)
    with pytest.raises(EngineError, match="2 cells"):
        blob.reposition(np.array([1, 2, 3]), rope_for())
    with pytest.raises(EngineError, match="heads are 32 wide, not 64"):
        blob.reposition(np.array([1, 2]), Rope(np.ones(32), Layout.NORM, 64))
    with pytest.raises(EngineError, match="-1 to 1 are out of range"):
        blob.reposition(np.array([1, -1]), rope_for())
    with pytest.raises(EngineError, match="two of them"):
        blob.reposition(np.array([4, 4]), rope_for())
    assert data == before


def test_probes_stand_at_small_and_at_far_positions() -> None:
    assert probe_positions(32_768) == [0, 7, 10_922, 32_767]
    for window in range(1, 30):
        positions = probe_positions(window)
        assert positions[0] == 0
        assert len(positions) > 1
        assert all(a < b for a, b in pairwise(positions))


@pytest.mark.model
@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 192])
def test_the_loaded_model_confirms_the_rotation_and_shows_if_k_is_mixed(
    tmp_path: Path, kv_type: str, head_dim: int
) -> None:
    file = write_tiny_gguf(tmp_path / "m.gguf", shape=Shape(width=2 * head_dim, heads=2, kv_heads=1))
    with bare(file, kv_type=kv_type) as llama:
        findings = llama.examine(WINDOW)
    assert findings.blobs is None
    found = findings.rope
    assert isinstance(found, Rope), found
    assert found.mixing == 0 or kv_type == "q8_0"


WIDE = Shape(width=128, heads=2, kv_heads=1)
MIXED_LAYERS = {
    "some without rope": replace(WIDE, architecture="smollm3", layers=5),
    "sliding window": replace(WIDE, architecture="gemma3", layers=7, rope_base=1e6),
    "sliding window, stretched": replace(WIDE, architecture="gemma3", layers=7, rope_base=1e6, linear_factor=8.0),
}


@pytest.mark.model
@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("shape", [WIDE, *MIXED_LAYERS.values()], ids=["all alike", *MIXED_LAYERS])
def test_a_moved_sequence_is_the_sequence_computed_there(tmp_path: Path, kv_type: str, shape: Shape) -> None:
    """Attention sees differences of positions only, so that a whole sequence may be computed anywhere.

    Within float32: llama.cpp's own angles at position 300 are off by 1e-4 radians, and layers pass that on.
    """
    tokens, by = list(b"the quick brown fox"), 300
    with bare(write_tiny_gguf(tmp_path / "m.gguf", shape=shape), kv_type=kv_type) as llama:
        confirmed = llama.examine(WINDOW).rope
        assert isinstance(confirmed, Rope), confirmed
        llama.decode(0, tokens, 0)
        llama.decode(1, tokens, by)
        blob = llama.save(0)
        moved, there = llama.parse(blob), llama.parse(llama.save(1))
        moved.reposition(moved.positions() + by, confirmed)
        assert np.array_equal(moved.positions(), there.positions())
        step = {"f32": 5e-4, "f16": 5e-3, "q8_0": 0.08}[kv_type]
        for layer in range(llama.shape.layers):
            wanted = there.keys_as_f32(layer)
            assert np.abs(moved.keys_as_f32(layer) - wanted).max() < step * np.abs(wanted).max()
        llama.load(2, blob)
        assert llama.end(2) == by + len(tokens) - 1
        next_token, place = list(b" jumps"), len(tokens)
        found, wanted = llama.decode(2, next_token, by + place), llama.decode(0, next_token, place)
        assert np.abs(found - wanted).max() < step * np.abs(wanted).max()


@pytest.mark.model
@pytest.mark.parametrize("shape", MIXED_LAYERS.values(), ids=list(MIXED_LAYERS))
def test_layers_that_turn_otherwise_are_found_out_one_by_one(tmp_path: Path, shape: Shape) -> None:
    with bare(write_tiny_gguf(tmp_path / "m.gguf", shape=shape)) as llama:
        rope = llama.rope()
        assert isinstance(rope, Rope)
        alone = examine(llama.shape, rope, llama.probe, WINDOW)
        assert alone.blobs is None
        assert isinstance(alone.rope, str)
        found = llama.examine(WINDOW).rope
    assert isinstance(found, Rope), found
    angles = [layer.frequencies[0] for layer in found.by_layer]
    if shape.architecture == "smollm3":
        assert [angle == 0 for angle in angles] == [False, False, False, True, False]
    else:
        own = found.by_layer[0].frequencies
        assert np.allclose(own, 1e6 ** (-np.arange(32) / 32) / shape.linear_factor), "full layers come first"
        assert all(np.allclose(layer.frequencies, 1e4 ** (-np.arange(32) / 32)) for layer in found.by_layer[1:])


@pytest.mark.model
def test_relabelling_reaches_both_sections(tmp_path: Path) -> None:
    shape = MIXED_LAYERS["sliding window"]
    with bare(write_tiny_gguf(tmp_path / "m.gguf", shape=shape)) as llama:
        llama.decode(0, [65, 66], 0)
        blob = llama.save(0)
        llama.parse(blob).relabel(1, 9)
        assert [section["position"].tolist() for section in llama.parse(blob).cells] == [[0, 9], [0, 9]]
        llama.parse(blob).cells[1]["position"][1] = 8
        with pytest.raises(EngineError, match="other cells than the full ones"):
            llama.parse(blob)


@pytest.mark.model
@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("wrong", ["layout", "base", "one slow pair", "partial", "backwards"])
def test_a_rotation_that_is_not_the_models_is_refused(tmp_path: Path, kv_type: str, wrong: str) -> None:
    with bare(write_tiny_gguf(tmp_path / "m.gguf"), kv_type=kv_type) as llama:
        right = llama.rope()
        assert isinstance(right, Rope)
        frequencies, layout = right.frequencies.copy(), right.layout
        if wrong == "layout":
            layout = Layout.NEOX
        elif wrong == "base":
            frequencies **= 1.01
        elif wrong == "one slow pair":
            frequencies[-1] *= 1.05
        elif wrong == "partial":
            frequencies = frequencies[:-1]
        else:
            frequencies = -frequencies
        findings = examine(llama.shape, Rope(frequencies, layout, right.head_dim), llama.probe, WINDOW)
    assert findings.blobs is None
    assert isinstance(findings.rope, str)
    assert "isn't understood" in findings.rope


@pytest.mark.model
def test_blobs_that_are_not_as_expected_rule_out_moving_too(tmp_path: Path) -> None:
    with bare(write_tiny_gguf(tmp_path / "m.gguf")) as llama:
        found = examine(replace(llama.shape, layers=3), llama.rope(), llama.probe, WINDOW)
        assert found.blobs is not None
        assert "2 layers; the model has 3" in found.blobs
        assert found.rope == found.blobs
        swapped = examine(llama.shape, llama.rope(), lambda positions: llama.probe(positions)[::-1], WINDOW)
        assert swapped.blobs is not None
        assert "says positions" in swapped.blobs


def test_a_reason_known_from_the_metadata_is_kept_and_nothing_is_computed_for_an_unknown_shape() -> None:
    def never(_positions: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
        raise AssertionError

    assert examine("why not", rope_for(), never, WINDOW) == Findings("why not", "why not")
    blobs = [np.frombuffer(make_blob([position]), np.uint8) for position in probe_positions(WINDOW)]
    assert examine(shape_of("f32"), "no rope", lambda _: blobs, WINDOW) == Findings(None, "no rope")


def test_a_shape_comes_from_the_metadata_or_is_a_reason() -> None:
    said = {"general.architecture": "a", "a.embedding_length": "128", "a.attention.head_count": "4"}
    assert kv_shape_of(said, 2, 0, "f16") == KvShape(2, 4, 32, "f16")
    assert kv_shape_of(said | {"a.attention.head_count_kv": "1"}, 2, 0, "f16") == KvShape(2, 1, 32, "f16")
    assert kv_shape_of(said | {"a.attention.key_length": "64"}, 2, 0, "f16") == KvShape(2, 4, 64, "f16")
    assert kv_shape_of(said, 2, 512, "f16") == KvShape(2, 4, 32, "f16", sections=2)
    assert "layers differ" in str(kv_shape_of(said | {"a.attention.head_count_kv": "[1, 2]"}, 2, 0, "f16"))
    assert "don't say" in str(kv_shape_of({}, 2, 0, "f16"))


def test_a_blob_is_a_view_and_copies_nothing() -> None:
    data = make_blob([0, 1])
    blob: Blob = parse_blob(data, shape_of("f32"))
    assert all(np.shares_memory(rows, np.frombuffer(data, np.uint8)) for rows in (*blob.keys, *blob.cells))
