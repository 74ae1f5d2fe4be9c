"""A device without memory at any moment: what failed is said, and the accounts of the KV cache stay what they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")
import torch

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions, loading
from akashic_daemon.engine.torch_engine.stage import Stage
from akashic_daemon.errors import EngineError, ModelError
from akashic_daemon.types import SequenceId
from tiny_gguf import write_tiny_gguf
from torch_lives import logits

pytestmark = pytest.mark.model

A, B, C = (SequenceId(n) for n in range(3))
PAGE, CELLS = 16, 128
TEXT = [(5 * n * n + n) % 256 for n in range(2 * CELLS)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf")


def engine(file: Path) -> TorchEngine:
    options = TorchOptions(
        name="tiny", path=file, max_sequences=4, kv_tokens=CELLS, page_tokens=PAGE, threads=1, device="cpu", kv_type="f32"
    )  # fmt: skip
    return TorchEngine(options, LlamaVocabulary(file))


def no_memory(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_packing_that_lacks_memory_changes_no_account(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, fresh = engine(file), engine(file)
    pages = one.kv.table.count
    one.decode([BatchItem(A, TEXT[: pages * PAGE - 8], 0, logits=False)])
    for page in range(pages):
        one.release(A, page * PAGE + 4, page * PAGE + 12)
    more = BatchItem(B, TEXT[:64], 0, logits=True)
    with monkeypatch.context() as patched:
        patched.setattr(type(one.kv.pool), "move", no_memory)
        with pytest.raises(torch.OutOfMemoryError):
            one.decode([more])
    one.kv.check()
    for sequence in (A, B):
        one.release(sequence)
    one.kv.check()
    assert one.kv.cells_held() == 0
    assert np.array_equal(logits(one, more), logits(fresh, more))


def test_an_export_that_lacks_memory_says_what_it_exported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(file)
    one.decode([BatchItem(A, TEXT[:20], 0, logits=True)])
    room = bytearray(one.export_bytes(20, "as_computed"))
    monkeypatch.setattr(type(one.kv.pool), "read", no_memory)
    with pytest.raises(EngineError, match="exporting 20 cells: CUDA out of memory"):
        one.export_cells(A, 0, 20, memoryview(room), "as_computed")


def test_weights_that_lack_memory_are_named_with_their_device(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_weights", no_memory)
    with pytest.raises(ModelError, match=r"loading the weights of .*tiny\.gguf to cpu layers 0 to .*out of memory"):
        engine(file)


def test_pages_that_a_failed_step_left_on_their_way_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []

    class Stream:
        def wait_stream(self, other: object) -> None:
            waited.append(other)

    home = (torch.zeros(3, 4, 1, PAGE, 8), torch.zeros(3, 4, 1, PAGE, 8))
    one, aside = Stage(home, torch.device("cpu")), object()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    one.begin([0, 1], [1])
    one.layer(0)  # the step fails here, with the pages of layer 1 under way
    monkeypatch.setattr(one, "_aside", aside)
    one.settle()
    one.settle()
    assert waited == [aside]
