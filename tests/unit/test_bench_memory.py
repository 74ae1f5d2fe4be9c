"""`akashic bench memory`: files of LoCoMo's shape, recall as counted by hand, and the real file when it is there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from akashic_cli.bench import memory as bench
from akashic_daemon.errors import TranscriptError
from akashic_daemon.memory.evaluation import corpus, fit
from akashic_daemon.memory.evaluation.compaction import answer_words
from akashic_daemon.memory.evaluation.corpus import Question
from akashic_daemon.memory.evaluation.retrieval import Measured
from akashic_daemon.memory.scoring import FEATURES

LOCOMO = Path(__file__).resolve().parents[3] / "shared" / "data" / "locomo_dev.json"


def conversation(**changed: Any) -> dict[str, Any]:
    turns = [
        {"speaker": "Ann", "dia_id": "D1:1", "text": "My parrot eats mangoes."},
        {"speaker": "Bob", "dia_id": "D1:2", "text": "The rent is due on Monday.", "blip_caption": "a letter"},
    ]
    asked = [
        {"question": "What does the parrot eat?", "evidence": ["D1:1"], "category": 4},
        {"question": "Who is it?", "evidence": [], "category": 1},
        {"question": "What does the dog eat?", "evidence": ["D1:1"], "category": 5},
        {"question": "Both?", "evidence": ["D1:1; D1:2", "D9:9"], "category": 1},
    ]
    talk = {"session_1": turns, "session_1_date_time": "1:56 pm on 8 May, 2023", "session_1_note": "x"}
    return {"conversation": talk, "qa": asked, **changed}


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps(content))
    return path


def test_only_questions_with_evidence_that_is_there_are_asked(tmp_path: Path) -> None:
    (read,) = corpus.read([written(tmp_path, [conversation()])])
    assert [(q.text, set(q.evidence)) for q in read.questions] == [
        ("What does the parrot eat?", {"D1:1"}),
        ("Both?", {"D1:1", "D1:2"}),
    ]
    ((source, said),) = read.sessions
    assert (source, said[1].text, said[1].event_at_s) == (
        "session_1",
        "The rent is due on Monday. [shares a letter]",
        1683554160.0,
    )


@pytest.mark.parametrize("content", [[{"conversation": {}}], ["x"], [conversation(qa=[])], 7])
def test_a_file_of_another_shape_is_named(tmp_path: Path, content: object) -> None:
    path = written(tmp_path, content)
    with pytest.raises(TranscriptError, match=str(path)):
        corpus.read([path])


def test_recall_is_the_share_of_the_evidence_among_the_first_and_within_a_budget() -> None:
    measured = Measured()
    asked = Question("q", frozenset({"a", "b"}), 1)
    others = [(frozenset({str(n)}), 100) for n in range(5)]
    measured.add(asked, [(frozenset({"a", "z"}), 100), *others, (frozenset({"b"}), 400)])
    row = measured.row("m")
    assert row["recall"] == {"5": 0.5, "10": 1.0, "20": 1.0}
    assert row["recall_within_tokens"]["250"] == 0.5
    assert row["recall_within_tokens"]["1000"] == 1.0
    assert row["by_category"] == {"multi-hop": {"5": 0.5, "10": 1.0, "20": 1.0}}


def test_the_whole_way_gives_a_row_for_each_method(tmp_path: Path) -> None:
    result = bench.measure([written(tmp_path, [conversation()])])
    rows = bench.table_rows(result)
    assert [row[0] for row in rows] == ["akashic", "bm25", "embedding", "fusion"]
    assert {len(row) for row in rows} == {len(bench.COLUMNS)}
    assert rows[0][1] == "100.0"
    assert "2 questions about 2 turns" in bench.summary(result)
    assert bench.recall_line(result).startswith("recalled before ")
    assert "other conversations" not in bench.recall_line(result)


def test_questions_about_other_conversations_are_asked_too(tmp_path: Path) -> None:
    other = conversation(
        conversation={
            "session_1": [{"speaker": "Cleo", "dia_id": "D1:1", "text": "Our lighthouse keeper paints boats."}]
        },
        qa=[{"question": "What does the lighthouse keeper paint?", "evidence": ["D1:1"], "category": 4}],
    )
    result = bench.measure([written(tmp_path, [conversation(), other])])
    (row,) = result["suites"]["recall"]["rows"]
    assert result["suites"]["recall"]["foreign_questions"] == 3
    assert row["recalled"] > row["false_recall"]
    assert "before 0.0 % of 3 questions about other conversations" in bench.recall_line(result)


def test_weights_are_fitted_on_the_other_conversations(tmp_path: Path) -> None:
    path = written(tmp_path, [conversation(), conversation()])
    result = bench.measure([path], leave_one_out=True, compaction=True)
    assert [row[0] for row in bench.table_rows(result)][-1] == "leave-one-out"
    assert [row[0] for row in bench.left_rows(result)][:2] == ["raw", "akashic"]
    assert {len(row) for row in bench.left_rows(result)} == {len(bench.LEFT_COLUMNS)}
    assert {len(row) for row in bench.adaptive_rows(result)} == {len(bench.ADAPTIVE_COLUMNS)}
    assert bench.adaptive_line(result).endswith("(target: 4)")
    assert set(result["suites"]["leave-one-out"]["weights"]) == set(FEATURES)
    with pytest.raises(TranscriptError, match="one only"):
        bench.measure([written(tmp_path, [conversation()])], leave_one_out=True)


def test_fitting_finds_the_feature_that_tells_the_evidence() -> None:
    rng = np.random.default_rng(2)
    numbers = rng.standard_normal((30, 40, len(FEATURES))).astype(np.float32)
    best = numbers[:, :, 3].argmax(axis=1)
    evidence = np.zeros((30, 40), np.float32)
    evidence[np.arange(30), best] = 1
    weights = fit.fit([fit.Asked(numbers, evidence)])
    assert int(np.abs(weights).argmax()) == 3
    assert weights[3] > 0


def test_the_error_of_the_measuring_process_comes_back(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="item 0"):
        bench.measure([written(tmp_path, ["x"])])
    with pytest.raises(TranscriptError, match="no such file"):
        bench.measure([tmp_path / "none.json"])


def test_recall_on_locomos_half_is_not_lost_again() -> None:
    if not LOCOMO.is_file():
        pytest.skip("the data beside the project isn't there")
    suites = bench.measure([LOCOMO])["suites"]
    ours, *plainer = suites["retrieval"]["rows"]
    (recalled,) = suites["recall"]["rows"]
    assert recalled["evidence"] >= 0.78
    assert recalled["false_recall"] <= 0.08
    assert ours["recall"]["5"] >= 0.72
    assert ours["recall"]["10"] >= 0.80
    assert ours["recall"]["20"] >= 0.86
    assert ours["recall_within_tokens"]["1000"] >= 0.87
    assert all(ours["recall"][depth] > row["recall"][depth] for row in plainer for depth in ours["recall"])


def test_answer_words_are_those_that_the_evidence_says_and_counted_where_they_stand() -> None:
    question = Question("What does it eat?", frozenset({"D1:1", "D1:2"}), 4, "ripe mangoes and figs, on Sundays")
    whole = {"D1:1": "Mangoes, if they are ripe", "D1:2": "and figs", "D1:3": "never on Sundays"}
    left = {"D1:1": "Mangoes", "D1:2": "", "D1:3": "figs, ripe"}
    assert answer_words(question, whole, left) == [pytest.approx(1 / 3)]
    assert answer_words(replace(question, answer="parrots"), whole, left) == []
