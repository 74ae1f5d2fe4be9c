"""`bench kernels` and `bench decode`: what they measure without a GPU, what they say of that, and how it is shown."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from akashic_cli.bench import torch_suites
from akashic_cli.bench.suites import SUITES, Inputs

ROWS = [
    {"what": "copy on the device", "value": 4260.0, "unit": "GB/s", "ceiling": "", "of_ceiling": None},
    {"what": "paged_decode, 32,768 tokens", "value": 50.0, "unit": "us", "ceiling": "SDPA", "of_ceiling": 0.97},
    {"what": "paged_decode, 32,768 tokens", "value": 50.0, "unit": "us", "ceiling": "copy", "of_ceiling": 0.63},
]
RESULT: dict[str, Any] = {"suite": "kernels", "device": "a GPU", "torch": "2", "model": "", "rows": ROWS}


def test_each_figure_stands_beside_its_ceiling() -> None:
    assert torch_suites.table_rows(RESULT) == [
        ("copy on the device", "4,260.0 GB/s", "-", "-"),
        ("paged_decode, 32,768 tokens", "50.0 us", "SDPA", "0.97"),
        ("paged_decode, 32,768 tokens", "50.0 us", "copy", "0.63"),
    ]


def test_measures_have_names_of_their_own_and_are_compared_by_shares() -> None:
    found = torch_suites.measures(RESULT)
    assert [(m.name, m.value, m.better) for m in found] == [
        ("copy on the device", 4260.0, "higher"),
        ("paged_decode, 32,768 tokens against SDPA", 0.97, "higher"),
        ("paged_decode, 32,768 tokens against copy", 0.63, "higher"),
    ]


def test_a_ceiling_that_wasnt_measured_is_absent_with_its_reason_and_no_figure() -> None:
    absent = {"what": "decode at 40 tokens", "value": 9.0, "unit": "tok/s", "ceiling": "theirs", "of_ceiling": None}
    result = RESULT | {"rows": [*ROWS, absent | {"absent": "no compiler"}, absent | {"absent": "no compiler"}]}
    assert torch_suites.table_rows(result)[3] == ("decode at 40 tokens", "9.0 tok/s", "theirs", "absent")
    assert torch_suites.absences(result) == ["theirs is absent: no compiler"]
    assert torch_suites.measures(result) == torch_suites.measures(RESULT)
    assert torch_suites.absences(RESULT) == []


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    torch_suites.plot(RESULT, tmp_path / "it.png")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


def test_a_suite_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("kernels", "torch-decode"):
        assert "--with gpu" in SUITES[name].needs(Inputs())


def test_without_a_gpu_the_references_are_timed_and_that_is_said(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    from akashic_daemon.speed import __main__ as speed
    from akashic_daemon.speed import stopwatch, torch_kernels

    monkeypatch.setenv("AKASHIC_HOME", str(home))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(stopwatch, "_REPEATS_CPU", 1)
    monkeypatch.setattr(torch_kernels, "points", lambda device, full: ([130], [20]))
    assert speed.main(["--torch", "kernels"]) == 0
    news = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "no CUDA device" in news[0]["note"]
    result = news[-1]["result"]
    assert result["device"] == "CPU"
    assert [row["what"] for row in result["rows"]] == [
        "copy on the device", "paged_decode, 130 tokens", "paged_decode, 130 tokens", "sparse decode, 1 of 2 pages",
        "segment_prefill, 20 tokens",
    ]  # fmt: skip
    assert all(row["value"] > 0 for row in result["rows"])


def test_decoding_is_timed_against_the_memorys_speed(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    from akashic_daemon.speed import __main__ as speed
    from akashic_daemon.speed import stopwatch, torch_decode
    from tiny_gguf import write_tiny_gguf

    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setenv("AKASHIC_HOME", str(home))
    monkeypatch.setattr(stopwatch, "_REPEATS_CPU", 1)
    monkeypatch.setattr(torch_decode, "contexts", lambda engine, full: [40])
    assert speed.main(["--torch", "decode", "--model", str(file)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])["result"]
    assert [(row["what"], row["ceiling"]) for row in result["rows"]][1:] == [
        ("decode at 40 tokens", "weights and KV at copy's speed")
    ]
    assert 0 < result["rows"][1]["of_ceiling"] < 1


class _Generating:
    """A model whose `generate` takes a second a token by a clock of its own, half of one with a static cache."""

    def __init__(self, clock: list[float], *, static_fails: bool) -> None:
        self.clock, self.static_fails = clock, static_fails

    def generate(self, prompt: Any, *, max_new_tokens: int, cache_implementation: str = "", **_: Any) -> None:
        if cache_implementation and self.static_fails:
            raise RuntimeError("no compiler")
        self.clock[0] += 7 + max_new_tokens * (0.5 if cache_implementation else 1.0)


@pytest.mark.parametrize("static_fails", [False, True])
def test_the_fastest_of_transformers_ways_counts_and_one_that_fails_is_told(
    static_fails: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch = pytest.importorskip("torch")
    from akashic_daemon.speed import torch_decode

    clock = [0.0]
    monkeypatch.setattr(torch_decode, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    theirs = object.__new__(torch_decode._Transformers)
    theirs._device = torch.device("cpu")
    theirs._model = _Generating(clock, static_fails=static_fails)
    theirs._ways, theirs.failed = {"sdpa": {}, "static": {"cache_implementation": "static"}}, {}
    assert theirs.best(30) == (("sdpa", 1.0) if static_fails else ("static", 0.5))
    assert [record.getMessage() for record in caplog.records] == (
        ["transformers' generate with static is left out: no compiler"] if static_fails else []
    )


@pytest.mark.parametrize("opens", [True, False])
def test_decoding_is_timed_though_transformers_fails(
    opens: bool, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    from akashic_daemon.speed import __main__ as speed
    from akashic_daemon.speed import stopwatch, torch_decode
    from tiny_gguf import Shape
    from torch_folder import config_of, tiny_tensors, write_folder

    class Failing(torch_decode._Transformers):
        def __init__(self, path: Path, device: Any, *, full: bool) -> None:
            if not opens:
                raise ValueError("no such architecture")
            self._ways, self.failed = {"sdpa": {}, "static": {}}, {}

        def _token_s(self, context: int, options: dict[str, Any]) -> float:
            raise RuntimeError("no compiler")

    folder = write_folder(tmp_path / "model", tiny_tensors(tmp_path, Shape()), config_of(Shape()))
    monkeypatch.setenv("AKASHIC_HOME", str(home))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(stopwatch, "_REPEATS_CPU", 1)
    monkeypatch.setattr(torch_decode, "contexts", lambda engine, full: [20, 40])
    monkeypatch.setattr(torch_decode, "_Transformers", Failing)
    assert speed.main(["--torch", "decode", "--model", str(folder)]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["result"]["rows"]
    assert [row["what"] for row in rows[1:]] == [f"decode at {n} tokens" for n in (20, 20, 40, 40)]
    reason = "sdpa: no compiler; static: no compiler" if opens else "it can't open the model: no such architecture"
    assert [row.get("absent") for row in rows[1:]] == [None, reason, None, reason]
    assert all(row["of_ceiling"] is not None for row in rows[1::2])


def test_a_folder_is_a_model_to_be_measured(tmp_path: Path) -> None:
    from akashic_daemon.config import load
    from akashic_daemon.fidelity.opening import known_model

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    found = known_model(str(tmp_path / "mine"), load(tmp_path / "none.toml", env={}))
    assert (found.name, found.path, found.size_bytes) == ("mine", tmp_path / "mine", 2)
