"""Any program, on llama.cpp through the index, equals the oracle's own forward pass (invariants 1, 2 and 4)."""

from __future__ import annotations

from pathlib import Path as FilePath

import pytest

from tiny_gguf import Shape, write_tiny_gguf

pytest.importorskip("llama_cpp")
from programs_driver import CLOSE, SHAPES, Programs

pytestmark = pytest.mark.model


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("seed", range(3))
def test_interleaved_programs_give_the_oracles_logits(tmp_path: FilePath, shape: Shape, seed: int) -> None:
    programs = Programs(write_tiny_gguf(tmp_path / "tiny.gguf", seed=seed, shape=shape), seed)
    try:
        while programs.done < 80:
            programs.act()
        assert programs.worst < CLOSE
        assert programs.moved, "no program moved a cell: the test shows nothing"
        assert programs.compacted, "the cache was never compacted: the test shows nothing"
        assert programs.recovered, "no program recovered a hole: the test shows nothing"
    finally:
        programs.engine.close()
