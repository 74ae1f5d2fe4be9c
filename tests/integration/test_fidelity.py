"""Fidelity's figures are those of an independent forward pass, and come out of the command whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from akashic_cli.__main__ import main
from akashic_daemon.errors import BadRequest
from akashic_daemon.trajectory.message import Message, Role

pytest.importorskip("llama_cpp")
from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions
from akashic_daemon.errors import EngineError
from akashic_daemon.fidelity.reader import LogitsReader
from akashic_daemon.fidelity.score import Scorer
from akashic_daemon.fidelity.turns import Run, TurnCutter, read_runs
from akashic_daemon.fidelity.variants import FULL, Kind, Variant, lay_out, variants_of
from akashic_daemon.types import SequenceId
from llama_oracle import logits as oracle_logits

pytestmark = pytest.mark.model

CLOSE = 1e-4
MESSAGES = (
    Message(Role.SYSTEM, "be brief"),
    Message(Role.USER, "list it"),
    Message(Role.ASSISTANT, "looking"),
    Message(Role.TOOL, "one two three"),
    Message(Role.ASSISTANT, "more"),
    Message(Role.TOOL, "four"),
    Message(Role.ASSISTANT, "again"),
    Message(Role.TOOL, "five six"),
    Message(Role.ASSISTANT, "that is all"),
)
ANSWERS = [message.content for message in MESSAGES if message.role is Role.ASSISTANT]
RUN = Run("short", MESSAGES, 0)


@pytest.fixture
def engine(tiny_gguf: Path) -> Iterator[LlamaCppEngine]:
    made = LlamaCppEngine(
        LlamaCppOptions("tiny", tiny_gguf, kv_type="f32", kv_tokens=2048, max_sequences=16, threads=1)
    )
    yield made
    made.close()


def score(engine: LlamaCppEngine, *keeps: int, run: Run = RUN) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    return Scorer(engine, keeps, told.append).score([run]), told


def expected(engine: LlamaCppEngine, file: Path, variant: Variant, keep: int) -> tuple[float, float]:
    """NLL and KL of one variant, by the oracle's own forward pass and plain numpy."""
    nll = kl = 0.0
    said = 0
    for turn, content in zip(TurnCutter(engine).turns(RUN), ANSWERS, strict=True):
        views = lay_out(turn, keep, engine.model.window_tokens)
        words = engine.tokenize(content, special=False)
        rows = []
        for path in (views[FULL].path, views[variant].path):
            first = len(path) - len(words) - 2  # the end mark and a line end follow
            assert path.tokens[first : first + len(words)].tolist() == words
            scores = oracle_logits(file, path)[first - 1 : first - 1 + len(words)]
            rows.append(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))
        full, other = rows
        nll -= sum(other[i, word] for i, word in enumerate(words))
        kl += (np.exp(full) * (full - other)).sum()
        said += len(words)
    return nll / said, kl / said


@pytest.mark.parametrize("kind", Kind)
def test_likelihood_and_divergence_are_the_oracles(engine: LlamaCppEngine, tiny_gguf: Path, kind: Kind) -> None:
    variant = FULL if kind is Kind.FULL else Variant(kind, 1)
    result, _ = score(engine, 1)
    figures = result["runs"][0]["variants"][str(variant)]
    nll, kl = expected(engine, tiny_gguf, variant, 1)
    assert figures["nll"] == pytest.approx(nll, abs=CLOSE)
    assert figures["kl"] == pytest.approx(kl, abs=CLOSE)
    assert (kl > 0.01) == (kind is not Kind.FULL), "the variants would not differ: the test shows nothing"


def test_where_nothing_is_dropped_every_variant_is_the_full_one(engine: LlamaCppEngine) -> None:
    result, told = score(engine, 3)
    full = result["runs"][0]["variants"]["full"]
    assert result["runs"][0]["scored_tokens"] == sum(len(engine.tokenize(a, special=False)) for a in ANSWERS)
    for figures in result["runs"][0]["variants"].values():
        assert figures == {**full, "kl": 0.0, "cut_turns": 0}
    assert [row["cut_runs"] for row in result["summary"]] == [0] * 4
    assert [row["cut_kl"] for row in result["summary"]] == [None] * 4
    assert sum("turn" in news for news in told) == len(ANSWERS)


def test_reading_again_what_is_computed_gives_the_same_logits(engine: LlamaCppEngine) -> None:
    reader = LogitsReader(engine, 1024)
    path = lay_out(list(TurnCutter(engine).turns(RUN))[-1], 1, 1024)[Variant(Kind.DROP, 1)].path
    once = reader.read(path, len(path) - 9, len(path) - 2)
    computed = reader.computed_tokens
    again = reader.read(path, len(path) - 9, len(path) - 2)
    assert once.shape == (7, engine.model.vocabulary_size)
    assert reader.computed_tokens - computed == 7
    assert np.abs(once - again).max() < CLOSE


@pytest.mark.parametrize("variant", variants_of((1,)), ids=str)
def test_computed_tokens_are_those_of_an_index_with_this_variant_alone(
    engine: LlamaCppEngine, variant: Variant
) -> None:
    reader = LogitsReader(engine, 2048)
    for turn in TurnCutter(engine).turns(RUN):
        path = lay_out(turn, 1, engine.model.window_tokens)[variant].path
        reader.read(path, len(path) - 1, len(path))
    reader.forget()
    result, _ = score(engine, 1)
    assert result["runs"][0]["variants"][str(variant)]["computed_tokens"] == reader.computed_tokens


def test_truncation_leaves_no_more_than_drop_and_keeps_the_system_message(engine: LlamaCppEngine) -> None:
    turn = list(TurnCutter(engine).turns(RUN))[-1]
    views = lay_out(turn, 1, engine.model.window_tokens)
    cut, drop = views[Variant(Kind.TRUNCATE, 1)], views[Variant(Kind.DROP, 1)]
    assert cut.visible_tokens <= drop.visible_tokens < views[FULL].visible_tokens
    head = turn.layout.messages[0].tokens
    assert cut.path.tokens[:head] == turn.layout.tokens[:head]


def test_answers_beyond_the_window_are_left_out_and_told(engine: LlamaCppEngine) -> None:
    long = (*MESSAGES, Message(Role.TOOL, "x" * 1200), Message(Role.ASSISTANT, "done"))
    result, told = score(engine, 1, run=Run("long", long, 2))
    assert result["runs"][0]["turns_left_out"] == 1
    assert any("1 of 5 answers don't fit" in news.get("note", "") for news in told)
    assert any("2 parts of the file" in news.get("note", "") for news in told)
    with pytest.raises(BadRequest, match="no answer of them fits"):
        score(engine, 1, run=Run("longer", (Message(Role.USER, "x" * 1200), MESSAGES[2]), 0))


def test_logits_that_nobody_asked_for_are_an_error(engine: LlamaCppEngine) -> None:
    engine.decode([BatchItem(SequenceId(0), (1, 2, 3), 0, logits=True)])
    with pytest.raises(EngineError, match="didn't ask"):
        engine.logits(0)


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"messages": [{"role": m.role.value, "content": m.content} for m in MESSAGES]}))
    return path


def test_the_command_prints_a_table_json_and_a_picture(
    tiny_gguf: Path,
    transcript: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AKASHIC_HOME", str(tmp_path / "home"))
    assert [run.name for run in read_runs(transcript)] == ["run"]
    command = ["bench", "fidelity", str(transcript), "--model", str(tiny_gguf), "--keep", "2,1"]
    assert main([*command, "--json", "--plot", str(tmp_path / "out.png")]) == 0
    result = json.loads(capfd.readouterr().out)
    assert [row["variant"] for row in result["summary"]] == [str(v) for v in variants_of((2, 1))]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert main(command) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["VARIANT", *(row["variant"] for row in result["summary"])]
    assert lines[1].split("\t")[1] == f"{result['summary'][0]['nll']:.4f}"


def test_what_the_measuring_process_refuses_is_the_commands_error(
    tiny_gguf: Path,
    transcript: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AKASHIC_HOME", str(tmp_path / "home"))
    assert main(["bench", "fidelity", str(transcript), "--model", "nobody"]) == 1
    assert "nobody" in capfd.readouterr().err
    assert main(["bench", "fidelity", str(transcript), "--model", str(tiny_gguf), "--keep", "1,one"]) == 2
    assert main(["bench", "fidelity", str(tmp_path / "gone.json"), "--model", str(tiny_gguf)]) == 2
    assert "no such file" in capfd.readouterr().err
    (tmp_path / "x.gguf").write_bytes(b"no model at all")
    assert main(["bench", "fidelity", str(transcript), "--model", str(tmp_path / "x.gguf")]) == 1
    assert "not a GGUF" in capfd.readouterr().err
