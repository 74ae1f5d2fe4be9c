"""Loading a GGUF: with few cells, with an error half-way; and a token whose text is long."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

llama_cpp = pytest.importorskip("llama_cpp")

from akashic_daemon.engine.base import BatchItem  # noqa: E402 - after the skip
from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions, engine, vocabulary  # noqa: E402
from akashic_daemon.errors import BadModelFile, EngineError  # noqa: E402
from akashic_daemon.types import SequenceId  # noqa: E402

pytestmark = pytest.mark.model
MADE, FREED = ("llama_model_load_from_file", "llama_init_from_model"), ("llama_model_free", "llama_free")


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("_make_context", EngineError("making room: told to fail")),
        ("weights_digest", BadModelFile("reading the model: it is gone")),
        ("Interrupt", MemoryError()),
    ],
)
def test_a_load_that_fails_anywhere_frees_model_and_context(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str) -> None:
        real = getattr(llama_cpp, name)

        def call(*args: Any) -> Any:
            calls[name] += 1
            return real(*args)

        monkeypatch.setattr(llama_cpp, name, call)

    def fail(*_args: object) -> None:
        raise error

    for name in (*MADE, *FREED):
        counted(name)
    monkeypatch.setattr(LlamaCppEngine if step.startswith("_") else engine, step, fail)
    with pytest.raises(type(error)):
        LlamaCppEngine(LlamaCppOptions(name="tiny", path=tiny_gguf, kv_tokens=64))
    assert calls["llama_model_load_from_file"] == calls["llama_model_free"] == 1
    assert calls["llama_init_from_model"] == calls["llama_free"] == (step != "_make_context")


@pytest.mark.parametrize(("cells", "sequences"), [(1, 2), (16, 128), (80, 224)])
def test_fewer_cells_than_sequences_are_a_small_cache_and_not_the_end_of_the_process(
    tiny_gguf: Path, cells: int, sequences: int
) -> None:
    with closing(
        LlamaCppEngine(LlamaCppOptions(name="tiny", path=tiny_gguf, kv_tokens=cells, max_sequences=sequences))
    ) as loaded:
        assert (loaded.capabilities.kv_cells, loaded.capabilities.max_sequences) == (cells, sequences)
        loaded.decode([BatchItem(SequenceId(0), (7,), 0, True)])
        assert loaded.position_range(SequenceId(0)) == (0, 0)


def test_a_token_that_prints_more_than_a_buffer_is_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b" " * 1000

    def to_piece(_vocabulary: object, _token: int, buffer: Any, room: int, _strip: int, _special: bool) -> int:
        if room < len(text):
            return -len(text)
        buffer[: len(text)] = text
        return len(text)

    monkeypatch.setattr(llama_cpp, "llama_token_to_piece", to_piece)
    assert vocabulary.piece_of(None, 7, special=False) == text
