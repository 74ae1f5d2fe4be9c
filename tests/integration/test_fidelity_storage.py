"""What storing KV loses is measured against KV that was stored as computed, and against an independent forward pass."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp")
from akashic_daemon.engine.base import AS_COMPUTED, Q8
from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions
from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.fidelity.__main__ import main as measuring_process
from akashic_daemon.fidelity.storage import StorageScorer, StoredReader
from akashic_daemon.fidelity.turns import Run
from akashic_daemon.program.path import Path as TokenPath
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SequenceId
from llama_oracle import logits as oracle_logits

pytestmark = pytest.mark.model

MESSAGES = (
    Message(Role.SYSTEM, "be brief"),
    Message(Role.USER, "list what is in the folder " * 5),
    Message(Role.ASSISTANT, "looking for it"),
    Message(Role.TOOL, "one two three"),
    Message(Role.ASSISTANT, "that is all that there is, and there is no more of it" * 4),
)
RUN = Run("short", MESSAGES, 0)


def opened(file: Path, **options: Any) -> LlamaCppEngine:
    return LlamaCppEngine(
        LlamaCppOptions("tiny", file, **{"kv_type": "f32", "kv_tokens": 2048, "max_sequences": 4, "threads": 1, **options})
    )  # fmt: skip


@pytest.fixture
def engine(tiny_gguf: Path) -> Iterator[LlamaCppEngine]:
    made = opened(tiny_gguf)
    yield made
    made.close()


def score(engine: LlamaCppEngine, file: Path, storage: str, run: Run = RUN) -> dict[str, Any]:
    other = opened(file, kv_tokens=engine.capabilities.kv_cells)
    try:
        return StorageScorer(engine, other, storage, lambda news: None).score([run])
    finally:
        other.close()


def test_stored_as_computed_nothing_is_lost(engine: LlamaCppEngine, tiny_gguf: Path) -> None:
    result = score(engine, tiny_gguf, AS_COMPUTED)
    assert result["runs"][0]["turns"] == 2
    assert result["runs"][0]["scored_tokens"] == sum(
        len(engine.tokenize(m.content, special=False)) for m in MESSAGES if m.role is Role.ASSISTANT
    )
    assert result["summary"]["nll_over_as_computed"] == 0
    assert result["summary"]["kl"] == 0
    assert result["summary"]["top_changed"] == 0


def test_stored_as_int8_something_is_lost_but_little(engine: LlamaCppEngine, tiny_gguf: Path) -> None:
    result = score(engine, tiny_gguf, Q8)
    assert 1e-8 < result["summary"]["kl"] < 1e-3
    assert 0 < abs(result["summary"]["nll_over_as_computed"]) < 0.02
    assert result["runs"][0]["bytes"] < 0.4 * result["runs"][0]["bytes_as_computed"]


def test_a_reader_that_stores_says_what_an_independent_forward_pass_says(
    engine: LlamaCppEngine, tiny_gguf: Path
) -> None:
    tokens = [40 + n * n % 91 for n in range(300)]
    expected = oracle_logits(tiny_gguf, TokenPath(array("i", tokens)))
    exact, near = (StoredReader(engine, SequenceId(n), s) for n, s in enumerate((AS_COMPUTED, Q8)))
    for first, end in ((150, 170), (170, 200), (260, 300)):
        np.testing.assert_allclose(exact.read(tokens, first, end), expected[first:end], atol=1e-3)
        found = near.read(tokens, first, end)
        error = np.abs(found - expected[first:end]).max()
        assert 1e-4 < error < 0.1, (first, end)
    other = [*tokens[:100], *tokens[:50]]
    expected = oracle_logits(tiny_gguf, TokenPath(array("i", other)))
    np.testing.assert_allclose(exact.read(other, 140, 150), expected[140:150], atol=1e-3)


def test_a_storage_that_the_engine_cannot_do_and_runs_that_do_not_fit_are_refused(
    engine: LlamaCppEngine, tiny_gguf: Path
) -> None:
    with pytest.raises(Unsupported, match="zip"):
        score(engine, tiny_gguf, "zip")
    long = Run("long", (Message(Role.USER, "x" * 1200), MESSAGES[2]), 0)
    with pytest.raises(BadRequest, match="no answer of them fits"):
        score(engine, tiny_gguf, Q8, long)
    small = opened(tiny_gguf, kv_tokens=96)
    try:
        assert score(small, tiny_gguf, Q8, Run("one", (*MESSAGES[:1], Message(Role.USER, "hi"), MESSAGES[2]), 0))
        with pytest.raises(BadRequest, match="no answer of them fits 96 tokens"):
            score(small, tiny_gguf, Q8, Run("two", MESSAGES[:3], 0))
    finally:
        small.close()


def test_the_measuring_process_prints_the_figures(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AKASHIC_HOME", str(tmp_path / "home"))
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"messages": [{"role": m.role.value, "content": m.content} for m in MESSAGES]}))
    assert measuring_process(["--storage", "q8", "--model", str(tiny_gguf), "--", str(path)]) == 0
    news = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert news[0]["turns"] == 2
    assert news[-1]["result"]["storage"] == "q8"
    assert news[-1]["result"]["summary"]["kl"] > 0
    assert measuring_process(["--storage", "zip", "--model", str(tiny_gguf), "--", str(path)]) == 2
