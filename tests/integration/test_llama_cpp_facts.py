"""What we believe of llama.cpp's memory, against an independent forward pass: an upgrade may change any of it."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from pathlib import Path as FilePath

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("gguf")
llama_cpp = pytest.importorskip("llama_cpp")

import llama_oracle  # noqa: E402 - after the skips
from akashic_daemon.engine.llama_cpp.rope import Rope  # noqa: E402
from akashic_daemon.errors import EngineError  # noqa: E402
from akashic_daemon.program.path import Drop, Insert, Path, PathBuilder, Repos  # noqa: E402
from llama_lowlevel import Bare, bare  # noqa: E402
from llama_walk import KEPT, MAIN, SCRATCH, decode_at, renumber, walk  # noqa: E402
from paths_strategy import random_path  # noqa: E402
from tiny_gguf import Shape, write_tiny_gguf  # noqa: E402

pytestmark = pytest.mark.model

TOLERANCE = 1e-4
"""Of the largest logit: llama.cpp computes in float32, the oracle in float64."""
OTHER = 9
PLAIN = Shape()
YARN = Shape(yarn_factor=4.0, layers=3, kv_heads=1)
SHAPES = {
    "plain": PLAIN,
    "one layer": Shape(layers=1, kv_heads=4),
    "yarn": YARN,
    "linear": Shape(linear_factor=2.0),
    "llama3": Shape(factors="llama3", rope_base=500000.0),
    "halves": Shape(architecture="phi3", layers=1),
    "some dimensions": Shape(architecture="phi3", rotated=12, yarn_factor=4.0, window=4096),
    "longrope, short": Shape(architecture="phi3", factors="longrope", window=2048),
    "longrope, long": Shape(architecture="phi3", factors="longrope", window=512),
}
WORDS = list(b"the quick brown fox jumps over the lazy dog")
Logits = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> FilePath:
    return tmp_path_factory.mktemp("facts")


def file_of(folder: FilePath, shape: Shape, seed: int = 7) -> FilePath:
    file = folder / f"{abs(hash((shape, seed)))}.gguf"
    return file if file.exists() else write_tiny_gguf(file, shape=shape, seed=seed)


@pytest.fixture
def plain(folder: FilePath) -> Iterator[Bare]:
    with bare(file_of(folder, PLAIN)) as made:
        yield made


@pytest.fixture
def yarn(folder: FilePath) -> Iterator[Bare]:
    with bare(file_of(folder, YARN)) as made:
        yield made


def expected(llama: Bare, *steps: list[int] | Drop | Repos | Insert) -> npt.NDArray[np.float64]:
    """Return the oracle's logits of all tokens of a path."""
    builder = PathBuilder()
    for step in steps:
        if isinstance(step, list):
            builder.append(step)
        else:
            builder.apply(step)
    return oracle_logits(llama, builder.build())


def oracle_logits(llama: Bare, path: Path) -> npt.NDArray[np.float64]:
    return llama_oracle.logits(llama.file, path, llama_cpp.llama_n_ctx_seq(llama.context))


def difference(found: Logits, wanted: npt.NDArray[np.floating]) -> float:
    """Return the largest difference of the last tokens' logits, relative to the largest logit."""
    wanted = wanted[-len(found) :]
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def rope_of(llama: Bare) -> Rope:
    rope = llama.rope()
    assert isinstance(rope, Rope), rope
    return rope


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_a_plain_prompt_computes_what_the_oracle_computes(folder: FilePath, shape: Shape) -> None:
    with bare(file_of(folder, shape)) as llama:
        assert difference(llama.decode(MAIN, WORDS, 0), expected(llama, WORDS)) < TOLERANCE


def test_dropping_a_middle_range_is_exact(plain: Bare) -> None:
    plain.decode(MAIN, WORDS[:30], 0)
    plain.remove(MAIN, 5, 17)
    found = plain.decode(MAIN, WORDS[30:], 30)
    assert difference(found, expected(plain, WORDS[:30], Drop(((5, 17),)), WORDS[30:])) < TOLERANCE
    assert difference(found, expected(plain, WORDS)) > TOLERANCE, "the drop changes nothing: the test proves nothing"


def test_a_batch_that_leaves_a_gap_after_the_tail_is_refused_and_changes_nothing(plain: Bare) -> None:
    plain.decode(MAIN, WORDS[:30], 0)
    plain.remove(MAIN, 25)
    assert plain.try_decode([(MAIN, WORDS[30:], 30)]) == -1
    assert plain.end(MAIN) == 24
    assert difference(plain.decode(MAIN, WORDS[25:], 25), expected(plain, WORDS)) < TOLERANCE


def test_an_empty_sequence_may_start_anywhere(plain: Bare) -> None:
    plain.decode(MAIN, WORDS[:10], 0)
    plain.remove(MAIN)
    found = plain.decode(MAIN, WORDS[10:], 10)
    assert difference(found, expected(plain, WORDS[:10], Drop(((0, 10),)), WORDS[10:])) < TOLERANCE


@pytest.mark.parametrize("length", [1, 9])
def test_a_relabelled_last_cell_lets_a_dropped_tail_keep_its_positions(yarn: Bare, length: int) -> None:
    yarn.decode(MAIN, WORDS[:30], 0)
    yarn.remove(MAIN, 22)
    first = decode_at(yarn, MAIN, WORDS[30 : 30 + length], 30)
    assert yarn.end(KEPT) == -1
    rest = yarn.decode(MAIN, WORDS[30 + length :], 30 + length)
    wanted = expected(yarn, WORDS[:30], Drop(((22, 30),)), WORDS[30:])
    assert difference(np.concatenate([first, rest]), wanted) < TOLERANCE
    kept = yarn.parse(yarn.save(MAIN)).positions()
    assert sorted(kept.tolist()) == [*range(22), *range(30, len(WORDS))]


def test_turning_the_last_cell_instead_of_relabelling_it_is_wrong(plain: Bare) -> None:
    """Why the trick leaves K alone."""
    plain.decode(MAIN, WORDS[:30], 0)
    plain.remove(MAIN, 22)
    llama_cpp.llama_memory_seq_add(plain.memory, MAIN, 21, 22, 8)
    found = plain.decode(MAIN, WORDS[30:], 30)
    assert difference(found, expected(plain, WORDS[:30], Drop(((22, 30),)), WORDS[30:])) > TOLERANCE


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_our_repos_of_a_saved_sequence_is_exact(folder: FilePath, shape: Shape) -> None:
    with bare(file_of(folder, shape)) as llama:
        llama.decode(MAIN, WORDS[:30], 0)
        llama.remove(MAIN, 3, 20)
        renumber(llama, MAIN, {p: p if p < 3 else p - 17 for p in [*range(3), *range(20, 30)]}, rope_of(llama))
        assert llama.end(MAIN) == 12
        found = llama.decode(MAIN, WORDS[30:], 13)
        wanted = expected(llama, WORDS[:30], Drop(((3, 20),)), Repos(), WORDS[30:])
        assert difference(found, wanted) < TOLERANCE
        unmoved = expected(llama, WORDS[:30], Drop(((3, 20),)), WORDS[30:])
        assert difference(found, unmoved) > TOLERANCE, "moving changes nothing: the test proves nothing"


def test_llama_cpps_own_shift_is_wrong_with_yarn(yarn: Bare) -> None:
    """Why we turn K ourselves. When this fails, llama.cpp has mended it, and `seq_add` may be worth another look."""
    yarn.decode(MAIN, WORDS[:30], 0)
    yarn.remove(MAIN, 3, 20)
    llama_cpp.llama_memory_seq_add(yarn.memory, MAIN, 20, 30, -17)
    found = yarn.decode(MAIN, WORDS[30:], 13)
    assert difference(found, expected(yarn, WORDS[:30], Drop(((3, 20),)), Repos(), WORDS[30:])) > 10 * TOLERANCE


def test_moving_a_private_copy_leaves_sequences_that_share_the_cells_bit_identical(plain: Bare) -> None:
    plain.decode(MAIN, WORDS[:30], 0)
    plain.copy(MAIN, OTHER)
    before = plain.decode(OTHER, WORDS[30:], 30)
    plain.remove(OTHER, 30)
    plain.remove(MAIN, 3, 20)
    renumber(plain, MAIN, {p: p if p < 3 else p - 17 for p in [*range(3), *range(20, 30)]}, rope_of(plain))
    plain.decode(MAIN, WORDS[30:], 13)
    plain.remove(MAIN)
    assert np.array_equal(plain.decode(OTHER, WORDS[30:], 30), before)


def test_a_range_comes_back_through_scratch_bit_for_bit(plain: Bare) -> None:
    plain.decode(MAIN, WORDS[:30], 0)
    plain.copy(MAIN, OTHER)
    undisturbed = plain.decode(OTHER, WORDS[30:], 30)
    plain.remove(OTHER)
    plain.copy(MAIN, SCRATCH, 10, 20)
    blob = plain.save(SCRATCH)
    plain.remove(SCRATCH)
    plain.remove(MAIN, 10, 20)
    plain.load(SCRATCH, blob)
    plain.copy(SCRATCH, MAIN)
    again = plain.save(SCRATCH)
    plain.remove(SCRATCH)
    assert [k.tobytes() for k in plain.parse(again).keys] == [k.tobytes() for k in plain.parse(blob).keys]
    assert np.array_equal(plain.decode(MAIN, WORDS[30:], 30), undisturbed)


def test_loading_empties_the_target_first(plain: Bare) -> None:
    plain.decode(SCRATCH, WORDS[:4], 0)
    blob = plain.save(SCRATCH)
    plain.decode(MAIN, WORDS[:30], 0)
    plain.load(MAIN, blob)
    assert sorted(plain.parse(plain.save(MAIN)).positions().tolist()) == [0, 1, 2, 3]


def test_loading_more_cells_than_are_free_is_an_error_and_the_others_stay(plain: Bare) -> None:
    plain.decode(MAIN, [65] * 150, 0)
    blob = plain.save(MAIN)
    with pytest.raises(EngineError, match="loading"):
        plain.load(SCRATCH, blob)
    assert plain.end(SCRATCH) == -1
    assert plain.end(MAIN) == 149


def test_a_blob_of_another_model_of_the_same_shape_loads_without_complaint(folder: FilePath, plain: Bare) -> None:
    """Why blobs need our own fingerprint."""
    plain.decode(MAIN, WORDS, 0)
    blob = plain.save(MAIN)
    with bare(file_of(folder, PLAIN, seed=8)) as other:
        other.load(MAIN, blob)
        assert other.end(MAIN) == len(WORDS) - 1


def test_a_replacement_computed_in_scratch_stands_in_the_dropped_place(yarn: Bare) -> None:
    new = list(b"a cat")
    yarn.decode(MAIN, WORDS[:30], 0)
    yarn.remove(MAIN, 10, 20)
    yarn.copy(MAIN, SCRATCH, 0, 10)
    inserted = yarn.decode(SCRATCH, new, 10)
    yarn.copy(SCRATCH, MAIN, 10)
    yarn.remove(SCRATCH)
    found = yarn.decode(MAIN, WORDS[30:], 30)
    wanted = expected(yarn, WORDS[:30], Drop(((10, 20),)), Insert(10, len(new)), new, WORDS[30:])
    assert difference(np.concatenate([inserted, found]), wanted) < TOLERANCE


def test_a_hole_left_by_an_evicted_segment_is_refilled_in_scratch_exactly(yarn: Bare) -> None:
    """Tokens 20.. were computed without 10..20, so their KV must stay; 5..10 is recomputed from what it saw."""
    yarn.decode(MAIN, WORDS[:20], 0)
    yarn.remove(MAIN, 10, 20)
    decode_at(yarn, MAIN, WORDS[20:30], 20)
    yarn.remove(MAIN, 5, 10)
    yarn.copy(MAIN, SCRATCH, 0, 5)
    yarn.decode(SCRATCH, WORDS[5:10], 5)
    yarn.copy(SCRATCH, MAIN, 5)
    yarn.remove(SCRATCH)
    found = yarn.decode(MAIN, WORDS[30:], 30)
    assert difference(found, expected(yarn, WORDS[:20], Drop(((10, 20),)), WORDS[20:30], WORDS[30:])) < TOLERANCE


def test_sequences_in_one_batch_compute_what_they_compute_alone(plain: Bare) -> None:
    other = list(b"jackdaws love my big sphinx")
    assert plain.try_decode([(MAIN, WORDS[:20], 0), (OTHER, other[:9], 0)]) == 0
    assert plain.try_decode([(OTHER, other[9:], 9), (MAIN, WORDS[20:], 20)]) == 0
    for sequence, tokens in ((MAIN, WORDS), (OTHER, other)):
        end = len(tokens)
        plain.remove(sequence, end - 1)
        assert difference(plain.decode(sequence, tokens[-1:], end - 1), expected(plain, tokens)) < TOLERANCE


@pytest.mark.parametrize("name", ["plain", "one layer", "yarn", "some dimensions", "longrope, long"])
def test_random_programs_compute_what_the_oracle_computes(folder: FilePath, name: str) -> None:
    shape = SHAPES[name]
    with bare(file_of(folder, shape)) as llama:
        for seed in range(40):
            path = random_path(random.Random(f"{name} {seed}"), vocabulary=256)
            found = walk(llama, path)
            assert difference(found, oracle_logits(llama, path)) < TOLERANCE, f"seed {seed}: {path}"
            for sequence in (MAIN, SCRATCH, KEPT):
                assert sequence == MAIN or llama.end(sequence) == -1
            llama.remove(MAIN)


def test_the_oracle_is_sensitive_to_every_part_of_a_path(folder: FilePath) -> None:
    """Else agreeing with it would prove nothing."""
    file = file_of(folder, PLAIN)

    def last(*ops: Drop | Repos) -> npt.NDArray[np.float64]:
        found = llama_oracle.logits(file, Path(array("i", WORDS[:20])).then(WORDS[20:21], ops))
        return np.asarray(found[20])

    results = [last(), last(Drop(((3, 4),))), last(Drop(((4, 5),))), last(Drop(((3, 4),)), Repos())]
    for at, one in enumerate(results):
        for another in results[:at]:
            assert np.abs(one - another).max() / np.abs(one).max() > TOLERANCE
