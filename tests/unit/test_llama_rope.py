"""Turning K by position: the angles, the layouts, where the numbers come from, and when they can't be known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")

from akashic_daemon.engine.gguf_header import read_table
from akashic_daemon.engine.llama_cpp.rope import Layout, Rope, rope_of
from akashic_daemon.errors import ModelError
from tiny_gguf import Shape, write_tiny_gguf

LLAMA = {
    "general.architecture": "llama",
    "llama.embedding_length": "64",
    "llama.attention.head_count": "4",
    "llama.attention.head_count_kv": "2",
    "llama.context_length": "1024",
    "llama.rope.dimension_count": "16",
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("rope") / "tiny.gguf")


def walsh_hadamard(size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the orthonormal matrix, from its definition."""
    signs = [[(-1) ** (row & column).bit_count() for column in range(size)] for row in range(size)]
    return np.array(signs) / math.sqrt(size)


def made(
    file: Path, changes: Mapping[str, str] = MappingProxyType({}), *, rope_type: int = 0, window: int = 256
) -> Rope:
    metadata = LLAMA | {f"llama.{key}": value for key, value in changes.items()}
    rope = rope_of(metadata, rope_type, file, window)
    assert isinstance(rope, Rope), rope
    return rope


def some_keys(cells: int, rope: Rope, seed: int = 1) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal((cells, 3, rope.head_dim)).astype(np.float32)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(("rotated", "mixing"), [(16, 0), (12, 0), (2, 0), (16, 16), (16, 8)])
def test_each_pair_turns_by_its_own_angle_and_the_rest_stays(layout: Layout, rotated: int, mixing: int) -> None:
    frequencies = 100.0 ** (-np.arange(0, rotated, 2) / rotated)
    rope = Rope(frequencies, layout, 16, mixing)
    k, delta = some_keys(4, rope), np.array([0, 1, -3, 70_000])
    basis = np.kron(np.eye(16 // mixing), walsh_hadamard(mixing)) if mixing else np.eye(16)
    wanted = np.zeros_like(k, np.float64)
    for cell, by in enumerate(delta.tolist()):
        turn = np.eye(16)
        for pair, frequency in enumerate(frequencies):
            one, two = (2 * pair, 2 * pair + 1) if layout is Layout.NORM else (pair, pair + rotated // 2)
            cos, sin = math.cos(by * frequency), math.sin(by * frequency)
            turn[[one, one, two, two], [one, two, one, two]] = cos, -sin, sin, cos
        wanted[cell] = k[cell] @ (basis @ turn @ basis).T
    before = k.copy()
    assert np.abs(rope.rotate(k, delta) - wanted).max() < 2e-6 * np.abs(k).max()
    assert np.array_equal(k, before), "rotate changed what it was given"


@given(st.lists(st.tuples(st.integers(-200_000, 200_000), st.integers(-200_000, 200_000)), min_size=1, max_size=5))
def test_turning_twice_is_turning_by_the_sum_and_keeps_lengths(moves: list[tuple[int, int]]) -> None:
    rope = Rope(10000.0 ** (-np.arange(0, 16, 2) / 16), Layout.NORM, 16)
    k = some_keys(len(moves), rope)
    first, second = (np.array(column, np.int64) for column in zip(*moves, strict=True))
    twice = rope.rotate(rope.rotate(k, first), second)
    assert np.abs(twice - rope.rotate(k, first + second)).max() < 5e-6 * np.abs(k).max()
    assert np.allclose(np.linalg.norm(twice, axis=-1), np.linalg.norm(k, axis=-1), rtol=1e-5)


def test_angles_far_out_are_exact_to_float32(file: Path) -> None:
    rope = made(file)
    far = 2**20 + 1
    phasor = rope.phasors(np.array([far]))[0]
    for pair, frequency in enumerate(rope.frequencies.tolist()):
        angle = math.fmod(far * frequency, 2 * math.pi)
        assert abs(phasor[pair] - complex(math.cos(angle), math.sin(angle))) < 5e-7


def test_numbers_come_from_the_metadata(file: Path) -> None:
    plain = made(file).frequencies
    assert np.allclose(plain, [10000 ** (-i / 8) for i in range(8)])
    assert np.allclose(
        made(file, {"rope.freq_base": "500000.000000"}).frequencies, [500000 ** (-i / 8) for i in range(8)]
    )
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": "4.000000"}
    assert np.allclose(made(file, linear).frequencies, plain / 4)
    assert np.allclose(made(file, {"rope.scale_linear": "4.0"}).frequencies, plain / 4)
    assert np.allclose(made(file, linear | {"rope.scaling.type": "none"}).frequencies, plain)
    partial = made(file, {"rope.dimension_count": "8", "attention.key_length": "32"}, rope_type=2)
    assert (partial.layout, partial.rotated, partial.head_dim) == (Layout.NEOX, 8, 32)


def test_yarn_keeps_fast_pairs_and_slows_slow_ones(file: Path) -> None:
    yarn = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": "4.0",
        "rope.scaling.original_context_length": "256",
    }
    plain = made(file).frequencies
    ratio = made(file, yarn).frequencies / plain
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(0.25)
    assert np.all(np.diff(ratio) <= 0)
    assert np.any(made(file, yarn | {"rope.scaling.yarn_beta_slow": "0.1"}).frequencies / plain > ratio)


def test_tables_in_the_file_divide_frequencies_and_the_window_picks_longropes(tmp_path: Path) -> None:
    plain = 10000.0 ** (-np.arange(8) / 8)
    long = write_tiny_gguf(tmp_path / "l", shape=Shape(architecture="phi3", factors="longrope", window=1024))
    llama3 = write_tiny_gguf(tmp_path / "3", shape=Shape(factors="llama3"))
    original = {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": "256"}
    assert np.allclose(made(long, original, window=256).frequencies, plain / np.linspace(1, 1.3, 8))
    assert np.allclose(made(long, original, window=257).frequencies, plain / np.linspace(1, 16, 8))
    assert np.allclose(made(llama3).frequencies, plain / np.linspace(1, 8, 8))


@pytest.mark.parametrize(
    ("rope_type", "changes", "reason"),
    [
        (-1, {}, "no rotary positions"),
        (8, {}, "M-RoPE"),
        (40, {}, "M-RoPE"),
        (0, {"llama.attention.kv_lora_rank": "512"}, "MLA"),
        (0, {"llama.attention.head_count_kv": "[2, 4]"}, "differ"),
        (0, {"llama.rope.scaling.alpha": "1000.0"}, "isn't understood"),
        (0, {"llama.rope.dimension_count": "32"}, "32 of 16 dimensions"),
        (0, {"llama.rope.dimension_count": "7"}, "7 of 16 dimensions"),
        (0, {"llama.rope.freq_base": "-1.0"}, "can't be read"),
        (0, {"llama.rope.freq_base": "many"}, "can't be read"),
        (0, {"general.architecture": "unheard-of"}, "don't say how many KV heads"),
    ],
)
def test_what_cannot_be_known_is_a_reason(file: Path, rope_type: int, changes: dict[str, str], reason: str) -> None:
    found = rope_of(LLAMA | changes, rope_type, file, 256)
    assert isinstance(found, str)
    assert reason in found


def test_a_table_that_does_not_fit_is_a_reason(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "t", shape=Shape(factors="llama3", rotated=8))
    found = rope_of(LLAMA, 0, file, 256)
    assert isinstance(found, str)
    assert "4 for 8 pairs" in found


def test_tensors_are_found_in_the_file_and_in_parts_of_a_split_one(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "whole.gguf", shape=Shape(factors="llama3"))
    wanted = np.linspace(1, 8, 8, dtype=np.float32)
    found = read_table(file, "rope_freqs.weight")
    assert found is not None
    assert np.array_equal(found, wanted)
    assert read_table(file, "rope_factors_long.weight") is None
    first = write_tiny_gguf(tmp_path / "big-00001-of-00002.gguf")
    file.rename(tmp_path / "big-00002-of-00002.gguf")
    found = read_table(first, "rope_freqs.weight")
    assert found is not None
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("kept", [30, 500, 3000])
def test_a_cut_off_tensor_table_is_an_error_that_names_the_file(file: Path, tmp_path: Path, kept: int) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        read_table(cut, "rope_freqs.weight")


def test_a_missing_part_is_an_error_that_names_it(file: Path, tmp_path: Path) -> None:
    first = tmp_path / "big-00001-of-00002.gguf"
    first.write_bytes(file.read_bytes())
    with pytest.raises(ModelError, match="big-00002-of-00002"):
        read_table(first, "rope_freqs.weight")
