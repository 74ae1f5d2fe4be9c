"""Any program, on the torch engine through the index, equals the oracle's own forward pass (invariants 1, 2 and 4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_gguf import Shape, write_tiny_gguf

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
from programs_driver import CLOSE, SHAPES
from torch_programs import TorchPrograms

pytestmark = pytest.mark.model


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize(("seed", "page_tokens"), [(0, 16), (1, 128), (2, 32)])
def test_interleaved_programs_give_the_oracles_logits(
    tmp_path: Path, shape: Shape, seed: int, page_tokens: int
) -> None:
    programs = TorchPrograms(write_tiny_gguf(tmp_path / "tiny.gguf", seed=seed, shape=shape), seed, page_tokens)
    try:
        while programs.done < 80:
            programs.act()
        assert programs.worst < CLOSE
        assert programs.moved, "no program moved a cell: the test shows nothing"
        assert programs.compacted, "the cache was never compacted: the test shows nothing"
        assert programs.recovered, "no program recovered a hole: the test shows nothing"
        assert programs.engine.kv.packed_cells, "no page was packed: the test shows nothing"
    finally:
        programs.engine.close()
