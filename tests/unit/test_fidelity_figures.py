"""The arithmetic of fidelity, and how the command reads and shows it."""

from __future__ import annotations

from array import array
from pathlib import Path as FilePath

import numpy as np
import pytest

from akashic_cli.bench.fidelity import COLUMNS, measure, parse_keep, table_rows
from akashic_daemon.errors import EngineError, UsageError
from akashic_daemon.fidelity.measure import divergence, log_softmax, surprise
from akashic_daemon.fidelity.report import Tally, run_report, summary
from akashic_daemon.fidelity.variants import FULL, Kind, Seen, Variant
from akashic_daemon.program.path import Drop, Path

DROP = Variant(Kind.DROP, 1)


def test_log_softmax_survives_logits_that_overflow_an_exponential() -> None:
    rows = log_softmax(np.array([[1000.0, 1000.0, -1000.0], [0.0, np.log(3.0), -np.inf]], np.float32))
    assert np.exp(rows) == pytest.approx(np.array([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0]]), abs=1e-6)


def test_surprise_and_divergence_are_sums_in_nats() -> None:
    even = np.log(np.full((2, 2), 0.5, np.float32))
    skewed = np.log(np.array([[0.25, 0.75], [0.75, 0.25]], np.float32))
    assert surprise(skewed, [0, 0]) == pytest.approx(-np.log(0.25) - np.log(0.75), abs=1e-6)
    assert divergence(even, even) == 0
    assert divergence(even, skewed) == pytest.approx(2 * (np.log(0.5) - (np.log(0.25) + np.log(0.75)) / 2), abs=1e-6)
    assert divergence(skewed, even) != pytest.approx(divergence(even, skewed), abs=1e-3)


def tallies(*, cut: bool) -> dict[Variant, Tally]:
    """Two turns of one run: five tokens in all, and a drop in the second if `cut`."""
    made = {FULL: Tally(), DROP: Tally()}
    for variant, tally in made.items():
        differs = cut and variant is DROP
        first = Path(array("i", [1, 2, 3]))
        tally.turn(Seen(first, 3), cut=False)
        tally.turn(Seen(first.then([4, 5], [Drop(((1, 2),))] if differs else []), 4 if differs else 5), cut=differs)
        tally.score(4, 8.0 if differs else 4.0, 2.0 if differs else 0.0)
    return made


def test_a_runs_figures_are_means_a_token_and_what_it_computes_by_itself() -> None:
    report = run_report("a", tallies(cut=True), 3)
    assert (report["turns"], report["turns_left_out"], report["scored_tokens"]) == (2, 3, 4)
    assert report["variants"] == {
        "full": {"nll": 1.0, "kl": 0.0, "cut_turns": 0, "visible_tokens": 4.0, "computed_tokens": 5},
        "drop keep 1": {"nll": 2.0, "kl": 0.5, "cut_turns": 1, "visible_tokens": 3.5, "computed_tokens": 5},
    }


def test_means_over_all_runs_stand_beside_those_over_runs_that_were_cut() -> None:
    runs = [run_report("a", tallies(cut=True), 0), run_report("b", tallies(cut=False), 0)]
    full, drop = summary(runs, [FULL, DROP])
    assert (drop["nll"], drop["nll_over_full"], drop["kl"]) == (1.5, 0.5, 0.25)
    assert (drop["cut_runs"], drop["cut_nll_over_full"], drop["cut_kl"]) == (1, 1.0, 0.5)
    assert (full["cut_runs"], full["cut_kl"], full["computed_tokens"]) == (0, None, 10)
    rows = table_rows({"summary": [full, drop]})
    assert rows[0] == ("full", "1.0000", "0.0000", "0.0000", "0", "-", "-", "4", "10")
    assert all(len(row) == len(COLUMNS) for row in rows)


def test_keep_is_a_list_of_different_whole_numbers() -> None:
    assert parse_keep("12, 4,0") == [12, 4, 0]
    for text in ("", "1,", "-1", "one", "4,4", "²"):
        with pytest.raises(UsageError, match="--keep"):
            parse_keep(text)


def test_a_measuring_process_that_just_dies_is_an_error(tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("akashic_cli.bench.fidelity.MODULE", "akashic_daemon.not_there")
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(EngineError, match="ended with code 1 and no result"):
        measure([tmp_path / "a.json"], [1], None, lambda news: None)
