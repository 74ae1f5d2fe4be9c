"""llama.cpp does what the engine's contract promises: on a tiny random model, and a first chat with the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.config import load
from akashic_daemon.engine.base import BatchItem, Engine, SamplingParams
from akashic_daemon.errors import BadRequest, EngineError, ModelError
from akashic_daemon.paths import find_paths
from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SequenceId
from fake_service import answer, ask, user

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0.0)
PROMPT = list(b"the quick brown fox jumps over the lazy dog, and then it sleeps")
A, B, C = SequenceId(0), SequenceId(1), SequenceId(2)


def load_engine(path: Path, **options: Any) -> Engine:
    from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions

    return LlamaCppEngine(
        LlamaCppOptions(
            name="tiny", path=path, max_sequences=4, flash_attention="off",
            **{"kv_type": "f32", "kv_tokens": 448, "threads": 1, **options},
        )
    )  # fmt: skip


@pytest.fixture
def engine(tiny_gguf: Path) -> Iterator[Engine]:
    made = load_engine(tiny_gguf)
    yield made
    made.close()


def feed(engine: Engine, sequence: SequenceId, tokens: Sequence[int], start: int) -> None:
    engine.decode([BatchItem(sequence, tokens, start, logits=True)])


def go_on(engine: Engine, sequence: SequenceId, tokens: Sequence[int], start: int, count: int = 24) -> list[int]:
    """Compute `tokens`, then return so many greedy tokens."""
    sampler = engine.sampler(GREEDY)
    out: list[int] = []
    current = list(tokens)
    while len(out) < count:
        feed(engine, sequence, current, start)
        start += len(current)
        current = [sampler.sample(0)]
        out += current
    sampler.close()
    return out


def test_the_tiny_model_loads_with_its_template_and_bytes(engine: Engine) -> None:
    assert engine.model.architecture == "llama"
    assert engine.model.window_tokens == 448
    assert engine.model.chat_template is not None
    assert engine.capabilities.drop
    text = "h\u00e9llo <|im_start|>"
    tokens = engine.tokenize(text, special=True)
    assert b"".join(map(engine.token_bytes, tokens[:-1])).decode() == "h\u00e9llo "
    assert engine.token_bytes(tokens[-1]) == b""
    assert len(engine.tokenize(text, special=False)) > len(tokens)
    assert engine.is_end(engine.tokenize("<|im_end|>", special=True)[0])
    assert not engine.is_end(tokens[0])


def test_kv_bytes_of_heads_wider_than_their_share_of_the_model_are_what_leaves_the_engine(
    smollm_path: Path, tmp_path: Path
) -> None:
    """As Qwen3's and Gemma's are: the budgets are counted in these bytes."""
    pytest.importorskip("gguf")
    from tiny_smol import write_tiny_smol

    engine = load_engine(write_tiny_smol(tmp_path / "wide.gguf", smollm_path), kv_type="f16")
    try:
        feed(engine, A, list(range(100)), 0)
        into = bytearray(engine.export_bytes(100, "as_computed"))
        size_bytes = engine.export_cells(A, 0, 100, memoryview(into), "as_computed")
        per_token = engine.model.kv_bytes_per_token
        assert per_token * 100 <= size_bytes < per_token * 101
    finally:
        engine.close()


def test_the_tiny_model_says_different_things_after_different_prompts(engine: Engine) -> None:
    """Else the comparisons below would prove nothing."""
    first = go_on(engine, A, PROMPT, 0)
    engine.release(A)
    assert len(set(first)) > 3
    assert go_on(engine, A, [*PROMPT[:5], 3, *PROMPT[6:]], 0) != first


@pytest.mark.parametrize("shared", [1, 20, len(PROMPT) - 1])
def test_a_shared_prefix_that_is_continued_says_what_computing_it_afresh_says(engine: Engine, shared: int) -> None:
    fresh = go_on(engine, A, PROMPT, 0)
    engine.release(A)
    feed(engine, A, PROMPT[:shared], 0)
    engine.share(A, B, 0, shared)
    assert engine.position_range(B) == (0, shared - 1)
    assert go_on(engine, B, PROMPT[shared:], shared) == fresh


def test_two_branches_of_one_prefix_do_not_see_each_other(engine: Engine) -> None:
    alone = go_on(engine, A, [*PROMPT, 1, 2, 3], 0)
    engine.release(A)
    feed(engine, A, PROMPT, 0)
    engine.share(A, B, 0, len(PROMPT))
    feed(engine, A, [9, 9, 9, 9], len(PROMPT))
    assert go_on(engine, B, [1, 2, 3], len(PROMPT)) == alone


def test_releasing_one_sequence_leaves_the_other_as_it_was(engine: Engine) -> None:
    undisturbed = go_on(engine, A, PROMPT, 0)
    engine.release(A)
    feed(engine, A, PROMPT[:30], 0)
    engine.share(A, B, 0, 30)
    engine.release(A)
    assert engine.position_range(A) is None
    assert engine.position_range(B) == (0, 29)
    assert go_on(engine, B, PROMPT[30:], 30) == undisturbed


def test_a_tail_that_is_released_can_be_computed_again(engine: Engine) -> None:
    fresh = go_on(engine, A, PROMPT, 0)
    engine.release(A, len(PROMPT))
    engine.release(A, 10)
    assert engine.position_range(A) == (0, 9)
    assert go_on(engine, A, PROMPT[10:], 10) == fresh


def test_cells_are_free_again_when_their_last_sequence_lets_go(engine: Engine) -> None:
    for _ in range(3):
        feed(engine, A, [1] * 440, 0)
        engine.share(A, B, 0, 440)
        engine.release(A)
        with pytest.raises(EngineError, match="no KV cell is free"):
            feed(engine, C, [1] * 100, 0)
        engine.release(B)


def test_a_batch_that_does_not_fit_leaves_every_sequence_as_it_was(engine: Engine) -> None:
    fresh = go_on(engine, A, PROMPT, 0)
    engine.release(A)
    feed(engine, A, PROMPT[:40], 0)
    feed(engine, B, [5] * 440, 0)
    with pytest.raises(EngineError, match="no KV cell is free"):
        engine.decode(
            [BatchItem(A, PROMPT[40:50], 40, logits=True), BatchItem(C, [7] * 60, 0, logits=True)],
        )
    assert engine.position_range(A) == (0, 39)
    assert engine.position_range(C) is None
    engine.release(B)
    assert go_on(engine, A, PROMPT[40:], 40) == fresh


@pytest.mark.parametrize("start", [0, 4])
def test_a_batch_at_the_wrong_position_is_refused(engine: Engine, start: int) -> None:
    feed(engine, A, [1, 2, 3, 4, 5], 0)
    with pytest.raises(EngineError, match="ends at position 4"):
        feed(engine, A, [6], start)
    feed(engine, A, [6], 5)


@pytest.mark.parametrize("sequence", [-1, 4, 1000])
def test_a_sequence_id_out_of_range_is_refused(engine: Engine, sequence: int) -> None:
    wrong = SequenceId(sequence)
    feed(engine, A, [1, 2, 3], 0)
    with pytest.raises(EngineError, match="sequence id"):
        feed(engine, wrong, [1], 0)
    with pytest.raises(EngineError, match="sequence id"):
        engine.share(A, wrong, 0, 3)
    with pytest.raises(EngineError, match="sequence id"):
        engine.share(wrong, A, 0, 3)
    with pytest.raises(EngineError, match="sequence id"):
        engine.release(wrong)
    with pytest.raises(EngineError, match="sequence id"):
        engine.position_range(wrong)


@pytest.mark.parametrize("token", [-1, 10_000_000])
def test_a_token_outside_the_vocabulary_is_refused(engine: Engine, token: int) -> None:
    feed(engine, A, [1, 2], 0)
    with pytest.raises(EngineError):
        feed(engine, A, [3, token], 2)
    assert engine.position_range(A) == (0, 1)
    feed(engine, A, [3], 2)


def test_more_tokens_than_a_batch_holds_are_refused(tiny_gguf: Path) -> None:
    made = load_engine(tiny_gguf, batch_tokens=16)
    with pytest.raises(EngineError, match="16"):
        feed(made, A, [1] * 17, 0)
    feed(made, A, [1] * 16, 0)
    made.close()


def test_a_seed_repeats_the_same_choices(engine: Engine) -> None:
    feed(engine, A, PROMPT, 0)
    params = SamplingParams(temperature=1.5, seed=11)
    picks = []
    for _ in range(2):
        sampler = engine.sampler(params)
        picks.append([sampler.sample(0) for _ in range(20)])
        sampler.close()
    assert picks[0] == picks[1]
    assert len(set(picks[0])) > 1


def test_a_broken_grammar_or_a_bias_on_no_token_is_a_bad_request(engine: Engine) -> None:
    with pytest.raises(BadRequest, match="grammar"):
        engine.sampler(SamplingParams(grammar="root ::= ("))
    with pytest.raises(BadRequest, match="logit_bias"):
        engine.sampler(SamplingParams(logit_bias=((10_000_000, 1.0),)))


@pytest.mark.parametrize("keep", [4, 8, 40, 2000, -1000])
def test_a_truncated_model_is_an_error_not_a_crash(tiny_gguf: Path, tmp_path: Path, keep: int) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_gguf.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        load_engine(cut)


@pytest.mark.parametrize("content", [b"", b"hello, I am text", b"\x80\x02}q\x00", b"GGUF\xff\xff\xff\xff" + bytes(64)])
def test_a_file_that_is_no_gguf_is_an_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "odd.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"odd\.gguf"):
        load_engine(file)


def test_a_missing_model_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        load_engine(tmp_path / "none.gguf")


def test_a_first_chat_with_the_embedded_model_and_its_second_turn_reuse_the_prefix(
    home: Path, smollm_path: Path
) -> None:
    assert smollm_path.is_file()

    async def run() -> None:
        flags = {"model.window_tokens": 512, "cache.kv_tokens": 1024, "cache.max_sequences": 4}
        settings = load(home / "config.toml", env={}, flags=flags)
        service = Service(settings, find_paths({"AKASHIC_HOME": str(home)}))
        await service.start()
        try:
            history = [Message(Role.SYSTEM, "Answer in one word."), user("What is the capital of France?")]
            first = await answer(service, ask(*history, max_tokens=12, sampling=GREEDY))
            assert "Paris" in first.text
            history += [Message(Role.ASSISTANT, first.text), user("And of Italy?")]
            second = await answer(service, ask(*history, max_tokens=12, sampling=GREEDY))
            assert second.reuse.miss is None
            assert second.reuse.reused_tokens >= first.prompt_tokens
            assert second.text
        finally:
            await service.stop()

    asyncio.run(run())


def test_a_step_as_large_as_the_settings_allow_fits_the_engines_batch(home: Path, tiny_gguf: Path) -> None:
    from akashic_daemon.engine.host import configured_engines

    flags = {"schedule.prefill_tokens": 4096, "schedule.max_running": 64, "cache.kv_tokens": 8192}
    settings = load(home / "config.toml", env={}, flags=flags)
    made = configured_engines(settings.config)("tiny", tiny_gguf)
    made.decode([BatchItem(SequenceId(n), [1] * (4096 if n == 0 else 1), 0, logits=True) for n in range(65)])
    made.close()


def test_an_empty_batch_is_refused(engine: Engine) -> None:
    with pytest.raises(EngineError):
        engine.decode([])
    with pytest.raises(EngineError):
        feed(engine, A, [], 0)
