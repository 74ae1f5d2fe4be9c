"""Invariant 4 on the torch engine: what one sequence does leaves another's logits bit-identical; and what fails adds nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")
import torch

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
from akashic_daemon.engine.torch_engine.pool import KvPool
from akashic_daemon.errors import EngineError
from akashic_daemon.types import SequenceId
from tiny_gguf import Shape, write_tiny_gguf

pytestmark = pytest.mark.model

CALM, BUSY, OTHER = (SequenceId(n) for n in range(3))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[TorchEngine]:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(yarn_factor=4.0))
    options = TorchOptions(
        name="tiny", path=file, kv_type="f32", max_sequences=4, kv_tokens=512, page_tokens=16, threads=1, device="cpu"
    )
    made = TorchEngine(options, LlamaVocabulary(file))
    yield made
    made.close()


def ask_both(engine: TorchEngine) -> tuple[bytes, bytes]:
    """Compute one more token of each in one batch, always of the same shape, and take it back."""
    engine.decode([BatchItem(CALM, [9], 90, logits=True), BatchItem(BUSY, [9], 90, logits=True)])
    found = engine.logits(0).tobytes(), engine.logits(1).tobytes()
    engine.release(CALM, 90)
    engine.release(BUSY, 90)
    return found


def test_drop_replace_repos_and_branching_of_one_leave_the_other_bit_identical(engine: TorchEngine) -> None:
    engine.decode([BatchItem(CALM, list(range(10, 50)), 0, logits=False)])
    engine.share(CALM, BUSY, 0, 16)
    engine.decode([BatchItem(BUSY, list(range(50, 80)), 16, logits=False)])
    calm, busy = ask_both(engine)
    heard = [busy]

    def unchanged() -> None:
        same, now = ask_both(engine)
        assert same == calm
        assert now not in heard, "the operation did nothing"
        heard.append(now)

    engine.release(BUSY, 4, 10)  # Drop, of what both see
    unchanged()
    engine.share(BUSY, OTHER, 0, 4)
    engine.decode([BatchItem(OTHER, [3, 4], 4, logits=False)])
    engine.share(OTHER, BUSY, 4, 6)  # Replace
    engine.release(OTHER)
    unchanged()
    saved = engine.save(BUSY, [(16, 46)])
    engine.release(BUSY, 16, 46)
    engine.load(saved, BUSY, [(20, 50)])  # Repos
    unchanged()
    engine.release(BUSY, 30)
    engine.decode([BatchItem(BUSY, [5, 6, 7], 60, logits=False)])  # a tail gap
    unchanged()
    assert not engine.kv.packed_cells, "packing rounds, and isn't what this is about"


def test_repos_moves_no_kv(engine: TorchEngine) -> None:
    engine.decode([BatchItem(BUSY, list(range(40)), 0, logits=False)])
    pool = engine.kv.pool
    assert isinstance(pool, KvPool)
    k, v = pool.k.clone(), pool.v.clone()
    saved = engine.save(BUSY, [(0, 12), (20, 40)])
    engine.release(BUSY)
    engine.load(saved, BUSY, [(0, 12), (12, 32)])
    assert engine.position_range(BUSY) == (0, 31)
    assert torch.equal(k, pool.k)
    assert torch.equal(v, pool.v)
    assert saved.nbytes < 200


def test_logits_that_are_no_numbers_are_an_error_and_add_nothing(engine: TorchEngine) -> None:
    engine.decode([BatchItem(CALM, list(range(20)), 0, logits=True)])
    assert isinstance(engine.kv.pool, KvPool)
    engine.kv.pool.v[0, int(engine.kv.views(CALM)[0, 0])] = float("nan")
    with pytest.raises(EngineError, match="logits are not numbers"):
        engine.decode([BatchItem(CALM, [5], 20, logits=True)])
    assert engine.position_range(CALM) == (0, 19)
    engine.kv.check()
    engine.decode([BatchItem(BUSY, [5], 0, logits=True)])
    assert np.isfinite(engine.logits(0)).all()


@pytest.mark.parametrize(
    ("item", "names"),
    [
        (BatchItem(CALM, [5], 19, logits=True), "ends at position 19, but the batch starts at 19"),
        (BatchItem(SequenceId(4), [5], 0, logits=True), "outside 0..3"),
        (BatchItem(CALM, [], 20, logits=True), "at least one token"),
        (BatchItem(CALM, [260], 20, logits=True), "outside the vocabulary"),
    ],
)
def test_a_batch_that_cant_be_is_refused_and_adds_nothing(engine: TorchEngine, item: BatchItem, names: str) -> None:
    engine.decode([BatchItem(CALM, list(range(20)), 0, logits=True)])
    for batch in ([item], [BatchItem(BUSY, [1, 2], 0, logits=True), item]):
        with pytest.raises(EngineError, match=names):
            engine.decode(batch)
    assert engine.position_range(CALM) == (0, 19)
    assert engine.position_range(BUSY) is None
    with pytest.raises(EngineError, match="two items of one sequence"):
        engine.decode([BatchItem(BUSY, [1], 0, logits=True), BatchItem(BUSY, [2], 1, logits=True)])
    engine.kv.check()


def test_a_batch_too_large_for_the_pool_is_refused_and_adds_nothing(engine: TorchEngine) -> None:
    engine.decode([BatchItem(CALM, list(range(20)), 0, logits=True)])
    with pytest.raises(EngineError, match=r"no room for 900 more.*20 of"):
        engine.decode([BatchItem(BUSY, [1] * 900, 0, logits=True)])
    engine.kv.check()
    assert engine.position_range(BUSY) is None


def test_what_a_sequence_doesnt_hold_cant_be_saved_nor_another_cell_be_shared(engine: TorchEngine) -> None:
    engine.decode([BatchItem(CALM, list(range(20)), 0, logits=True), BatchItem(BUSY, [1, 2, 3], 0, logits=True)])
    with pytest.raises(EngineError, match="it holds 20 of them"):
        engine.save(CALM, [(0, 21)])
    with pytest.raises(EngineError, match="another cell"):
        engine.share(CALM, BUSY, 2, 8)
    engine.share(CALM, BUSY, 3, 8)
    engine.share(CALM, BUSY, 5, 12)
    assert engine.position_range(BUSY) == (0, 11)
    engine.kv.check()
