"""A step of llama.cpp that is interrupted adds nothing, and what is computed next is as it would have been."""

from __future__ import annotations

from pathlib import Path

import pytest

from akashic_daemon.engine.base import BatchItem, Engine, Interruptible, SamplingParams
from akashic_daemon.errors import EngineError
from akashic_daemon.types import SequenceId

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.model

PROMPT = list(b"the quick brown fox jumps over the lazy dog, and then it sleeps")
A = SequenceId(0)


def greedy(engine: Engine) -> list[int]:
    """Return what follows the prompt."""
    sampler = engine.sampler(SamplingParams(temperature=0.0))
    out = [sampler.sample(0)]
    while len(out) < 8:
        engine.decode([BatchItem(A, out[-1:], len(PROMPT) + len(out) - 1, True)])
        out.append(sampler.sample(0))
    return out


def test_an_interrupted_step_adds_nothing_and_the_next_is_right(tiny_gguf: Path) -> None:
    from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions

    engine = LlamaCppEngine(
        LlamaCppOptions(
            name="tiny", path=tiny_gguf, kv_type="f32", max_sequences=4, flash_attention="off", kv_tokens=448, threads=1
        )
    )
    try:
        assert isinstance(engine, Interruptible)
        first, last = BatchItem(A, PROMPT[:20], 0, False), BatchItem(A, PROMPT[20:], 20, True)
        engine.decode([first])
        engine.decode([last])
        said = greedy(engine)
        engine.release(A)
        engine.decode([first])
        engine.interrupt()
        with pytest.raises(EngineError, match="it was aborted"):
            engine.decode([last])
        engine.decode([last])  # it would be refused if its cells were there already
        assert greedy(engine) == said
    finally:
        engine.close()
