"""`akashic bench run` and what is made of its files: kept whole, resumed, compared with noise, shown to people."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from akashic_cli.__main__ import main
from akashic_cli.bench import record as records
from akashic_cli.bench import report as reports
from akashic_cli.bench import runner, suites
from akashic_cli.bench.compare import compare
from akashic_cli.bench.pictures import draw
from akashic_cli.bench.record import Measure, Record, SuiteRecord
from akashic_cli.bench.report import html, markdown
from akashic_cli.bench.report_words import HOW_TO_READ
from akashic_cli.bench.suites import Inputs, Suite
from akashic_daemon.errors import EngineError, UsageError


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the suites by three that only note that they ran; `fails` and `stops` do so the first time."""
    done: list[str] = []

    def made(name: str, error: BaseException | None = None, *, peers: bool = False) -> Suite:
        def run(_inputs: Inputs, peer: Any, progress: suites.Progress) -> suites.Found:
            label = name if peer is None else f"{name}@{peer.base_url}"
            done.append(label)
            progress(0.5)
            if error is not None and done.count(label) == 1:
                raise error
            return [Measure("speed", 4.0, "tok/s", "higher", (3.0, 4.0, 5.0))], {"raw": name}

        return Suite(name, f"about {name}", (1.0, 2.0), run, takes_peers=peers)

    every = [
        made("good", peers=True), made("fails", EngineError("loading: no <memory>")), made("stops", KeyboardInterrupt()),
        replace(made("needy"), needs=lambda _: "it needs a thing"),
    ]  # fmt: skip
    for module in (suites, runner, reports):
        monkeypatch.setattr(module, "SUITES", {suite.name: suite for suite in every})
    return done


def asked(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["bench", "run", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_is_one_document_with_machine_command_and_figures(
    home: Path, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(capsys, "good", "needy")
    assert found["schema"] == 1
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["memory_bytes"] > 0
    assert [s["status"] for s in found["suites"]] == ["done", "skipped"]
    assert found["suites"][0]["measures"][0]["samples"] == [3.0, 4.0, 5.0]
    assert found["suites"][1]["reason"] == "it needs a thing"
    assert main(["bench", "history", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [found]
    assert str(home) not in json.dumps(found["machine"])


def test_a_suite_that_fails_leaves_the_others_alone_and_is_named(
    home: Path, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(capsys, "fails", "good", code=1)
    assert ran == ["good", "fails"]
    assert {s["suite"]: s["status"] for s in found["suites"]} == {"good": "done", "fails": "failed"}
    assert "no <memory>" in found["suites"][1]["reason"]


def test_an_interrupted_run_is_kept_and_resumed_without_measuring_again(
    home: Path, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first = asked(capsys, "good", "stops", "needy", code=130)
    assert first["status"] == "interrupted"
    assert [s["status"] for s in first["suites"]] == ["done", "interrupted"]
    second = asked(capsys, "good", "stops", "needy", "--resume")
    assert second["id"] == first["id"]
    assert ran == ["good", "stops", "stops"]
    assert [s["status"] for s in second["suites"]] == ["done", "done", "skipped"]
    assert main(["bench", "run", "good", "stops", "needy", "--resume"]) == 1
    assert "broke off" in capsys.readouterr().err


def test_peers_get_the_same_suites_and_stand_beside(
    home: Path, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(capsys, "good", "needy", "--peer", "a=http://h/v1", "--peer", "b=http://i/v1")
    assert ran == ["good", "good@http://h/v1", "good@http://i/v1"]
    assert [s["target"] for s in found["suites"]] == ["akashic", "a", "b", "akashic"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["godo"], "did you mean 'good'"),
        (["good", "--peer", "x"], "NAME=URL"),
        (["good", "--peer", "akashic=http://h"], "taken"),
        (["good", "--transcripts", "none.json"], "none.json"),
        (["good", "--model", "none.gguf"], "none.gguf"),
    ],
)
def test_what_cannot_run_is_a_usage_error_before_anything_runs(
    home: Path, ran: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["bench", "run", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert ran == []


def test_an_empty_history_says_how_to_make_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "history"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "akashic bench run all" in shown.err
    assert main(["bench", "history", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    for command in (["report", "latest"], ["compare", "latest", "latest"]):
        assert main(["bench", *command]) == 1
        assert "akashic bench run all" in capsys.readouterr().err


def test_history_names_a_file_that_it_cannot_read(
    home: Path, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked(capsys, "good")
    (records.history_dir() / "0.json").write_text("{")
    assert main(["bench", "history", "--json"]) == 0
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)) == 1
    assert "0.json" in shown.err


def test_list_names_every_suite(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list", "--json"]) == 0
    assert [row["suite"] for row in json.loads(capsys.readouterr().out)] == list(suites.SUITES)


def record(values: list[float], *, better: str = "lower", name: str = "first token", **changed: Any) -> Record:
    measure = Measure(name, sorted(values)[len(values) // 2], "s", better, tuple(values))
    machine = {
        "processor": "P", "cores": 2, "memory_bytes": 1 << 30, "gpus": [], "system": "S", "python": "3", "packages": {},
        "load_at_start": [0.0],
    }  # fmt: skip
    suite = SuiteRecord("replay", "akashic", "done", "", 1.0, [measure], {})
    return replace(Record("x", "quick", "now", "0", "akashic", machine, {}, "done", [suite]), **changed)


@pytest.mark.parametrize(
    ("after", "better", "verdict"),
    [
        ([2.0, 2.1, 2.2, 1.9, 2.0], "lower", "worse"),
        ([2.0, 2.1, 2.2, 1.9, 2.0], "higher", "better"),
        ([0.5, 0.4, 0.6, 0.5, 0.5], "lower", "better"),
        ([0.7, 1.6, 0.6, 1.5, 1.1], "lower", "within noise"),
        ([1.0, 1.1, 0.9, 1.0, 1.2], "lower", "same"),
        ([2.0], "lower", "changed, noise unknown"),
    ],
)
def test_a_change_counts_only_when_it_is_more_than_noise(after: list[float], better: str, verdict: str) -> None:
    before = record([1.0, 1.1, 0.9, 1.0, 1.2], better=better)
    (row,) = compare(before, record(after, better=better))["rows"]
    assert row["verdict"] == verdict


def test_pairs_show_a_change_that_unpaired_samples_would_hide() -> None:
    slow = [0.1, 1.0, 5.0, 20.0, 60.0, 90.0]
    (row,) = compare(record(slow), record([value * 1.2 for value in slow]))["rows"]
    assert (row["low"], row["high"]) == (pytest.approx(0.2), pytest.approx(0.2))


def test_a_comparison_says_what_else_differs(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = record([1.0] * 4), record([3.0] * 4, size="full")
    other.machine["cores"] = 8
    other.suites[0].measures.append(Measure("new", 1.0, "s"))
    files = []
    for number, made in enumerate((one, other)):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(made.to_json()))
    command = ["bench", "compare", *map(str, files)]
    assert main([*command, "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["machine_differs_in"] == ["cores"]
    assert found["only_after"] == ["replay: new"]
    assert "other sizes or inputs" in shown.err
    assert main([*command, "--fail-on-worse"]) == 1
    assert main(["bench", "compare", str(files[1]), str(files[0]), "--fail-on-worse"]) == 0


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 9}', '{"schema": 1}'])
def test_a_file_that_is_no_run_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"broken\.json"):
        records.load(path)


class Outline(HTMLParser):
    """Checks that tags are closed in order, and gathers what stands in the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.images: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.images.append(str(dict(attrs)["class"]))
        elif tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_is_whole_shows_light_and_dark_and_escapes_what_it_is_told() -> None:
    pytest.importorskip("matplotlib")
    made = record([0.5, 0.6, 0.7])
    made.suites.append(SuiteRecord("tiers", "akashic", "failed", "no <script>alert(1)</script>", 0.1, [], {}))
    page = html(made, draw(made))
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert outline.images == ["light", "dark"]
    assert "prefers-color-scheme: dark" in page
    assert "<script" not in page
    assert "600 ms" in outline.text
    assert not re.search(r"(src|href)=.https?:", page), "a report must not load anything"


def test_reports_are_written_by_name_and_without_matplotlib_say_so(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records.save(record([1.0, 2.0]))
    assert main(["bench", "report", "latest"]) == 0
    assert capsys.readouterr().out == markdown(record([1.0, 2.0]))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = tmp_path / "r.html"
    assert main(["bench", "report", "x", "--out", str(page)]) == 0
    assert "No plots" in page.read_text()
    assert main(["bench", "report", "x", "--out", str(tmp_path / "r.pdf")]) == 2
    assert main(["bench", "report", "none"]) == 1


def test_a_report_puts_servers_beside_each_other_and_tells_a_stranger_what_it_is() -> None:
    made = record([0.5, 0.6, 0.7], name="first token, median")
    made.machine["load_at_start"], made.machine["cores"] = [9.0, 1.0, 1.0], 2
    suite = made.suites[0].suite
    other = Measure("first token, median", 1.25, "s", "lower", ())
    extra = Measure("output", 15170.0, "tok/s", "higher", ())
    made.suites.append(SuiteRecord(suite, "llama", "done", "", 2.0, [other, extra], {}))
    for text in (markdown(made), html(made, {})):
        assert text.index("600 ms") < text.index("1.25 s")
        assert "15,170 tok/s" in text
        assert "500 ms to 700 ms (3)" in text
        assert "machine was busy" in text
        for words in ("keeps what was computed", "95 of 100", "not measured" if made.status != "done" else "size"):
            assert words in text
    assert markdown(made).count(f"## {suite}") == 1
    quiet = record([0.5])
    quiet.machine["load_at_start"], quiet.machine["cores"] = [0.1], 2
    assert "busy" not in markdown(quiet)


def test_ratios_are_not_drawn_beside_what_they_are_of() -> None:
    pytest.importorskip("matplotlib")
    made = record([0.5, 0.6, 0.7])
    made.suites[0].measures += [Measure(f"ratio {n}", 0.75, "x", "lower") for n in range(3)]
    (picture,) = draw(made).values()
    assert picture.caption.startswith("s; ")


def test_a_report_says_of_each_goal_whether_it_is_met() -> None:
    made = record([0.5, 0.6, 0.7])
    ratios = [Measure(f"ratio {n}", 0.75, "x", better, goal=0.72) for n, better in enumerate(("lower", "higher"))]
    made.suites[0].measures += [*ratios, *(Measure(f"other {n}", 1.0, "x", "lower") for n in range(3))]
    for text in (markdown(made), html(made, {})):
        assert "0.75 x" in text
        assert "less is better; goal 0.72 x: not met" in text
        assert "more is better; goal 0.72 x: met" in text
    again = records.from_json(json.loads(json.dumps(made.to_json())), "memory")
    assert again == made
    old = made.to_json()
    for measure in old["suites"][0]["measures"]:
        del measure["goal"]
    assert all(m.goal is None for m in records.from_json(old, "memory").suites[0].measures), (
        "runs that were kept before"
    )


def test_every_suite_tells_a_stranger_how_to_read_it() -> None:
    assert set(suites.SUITES) <= set(HOW_TO_READ)


def test_no_suite_asks_a_server_what_it_may_know_from_before() -> None:
    runs = Inputs().runs(2, 300, 3)
    first, second = (suites._own(runs, "replay") for _ in range(2))
    starts = {run.messages[0]["content"][:40] for run in (*first, *second, *suites._own(runs, "serve"))}
    assert len(starts) == 6
    assert [run.messages[1:] for run in first] == [run.messages[1:] for run in runs]
