"""A fingerprint of llama.cpp changes with what KV depends on, and not with how much of it is held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.engine.base import AS_COMPUTED, BatchItem, Engine, ModelInfo, SamplingParams
from akashic_daemon.engine.parts import difference, parts_of
from akashic_daemon.types import SequenceId
from tiny_gguf import Shape, write_tiny_gguf

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.model

A = SequenceId(0)
PROMPT = list(b"the quick brown fox jumps over the lazy dog, and then it sleeps")


@contextmanager
def loaded(path: Path, **options: Any) -> Iterator[Engine]:
    from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions

    fixed = {"name": "tiny", "max_sequences": 4, "threads": 1, "kv_tokens": 448, "flash_attention": "off"}
    made = LlamaCppEngine(LlamaCppOptions(path=path, **{**fixed, **options}))
    try:
        yield made
    finally:
        made.close()


def info(path: Path, **options: Any) -> ModelInfo:
    with loaded(path, **options) as engine:
        return engine.model


def go_on(engine: Engine, start: int) -> list[int]:
    sampler = engine.sampler(SamplingParams(temperature=0.0))
    out, tokens = [], [7]
    for _ in range(24):
        engine.decode([BatchItem(A, tokens, start, logits=True)])
        start += 1
        tokens = [sampler.sample(0)]
        out += tokens
    sampler.close()
    return out


def test_more_cells_are_the_same_fingerprint_and_kv_goes_from_one_to_the_other(tiny_gguf: Path) -> None:
    with loaded(tiny_gguf) as few, loaded(tiny_gguf, kv_tokens=1300) as many:
        assert few.model.fingerprint == many.model.fingerprint
        few.decode([BatchItem(A, PROMPT, 0, logits=False)])
        buffer = memoryview(bytearray(few.export_bytes(len(PROMPT), AS_COMPUTED)))
        used = few.export_cells(A, 0, len(PROMPT), buffer, AS_COMPUTED)
        many.import_cells(buffer[:used], A, 0, len(PROMPT))
        assert go_on(many, len(PROMPT)) == go_on(few, len(PROMPT))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kv_type": "f32"}, "KV type f16 -> f32"),
        ({"flash_attention": "on"}, "fused attention off -> on"),
        ({"kv_type": "f32", "flash_attention": "on"}, "KV type f16 -> f32, fused attention off -> on"),
    ],
)
def test_what_kv_depends_on_is_another_fingerprint_that_says_what_changed(
    tiny_gguf: Path, options: dict[str, str], said: str
) -> None:
    old, new = info(tiny_gguf), info(tiny_gguf, **options)
    assert old.fingerprint != new.fingerprint
    assert difference(parts_of(old), parts_of(new)) == said


def test_only_where_the_window_picks_the_rope_factors_it_is_of_the_fingerprint(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "long.gguf", shape=Shape(architecture="phi3", factors="longrope", window=2048))
    short, longer, longest = (info(file, kv_tokens=cells, window_tokens=cells) for cells in (256, 1024, 1280))
    assert longer.fingerprint == longest.fingerprint
    assert short.fingerprint != longer.fingerprint
    assert difference(parts_of(short), parts_of(longer)) == "LongRoPE factors short -> long"


def test_other_weights_are_another_fingerprint(tiny_gguf: Path, tmp_path: Path) -> None:
    data = bytearray(tiny_gguf.read_bytes())
    data[-5] ^= 1
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(data)
    old, new = info(tiny_gguf), info(changed)
    assert old.fingerprint != new.fingerprint
    assert difference(parts_of(old), parts_of(new)) == "model file changed"
