"""What the CLI does by itself: settings, units, Markdown, replay, generated pages, diagnosis."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akashic_cli.__main__ import main
from akashic_cli.bench.summary import percentile
from akashic_cli.bench.transcripts import REMOVED_TEXT, Edit, read_run
from akashic_cli.bench.unique import UniqueTokens
from akashic_cli.docs import api_pages, command_tree, generate, man_pages, roff
from akashic_cli.doctor import Level, diagnose
from akashic_cli.doctor.home import check_socket_folder
from akashic_cli.render.markdown import split_blocks
from akashic_cli.render.units import ago, duration, size
from akashic_daemon.config import setting_names
from akashic_daemon.errors import TranscriptError, UsageError
from akashic_daemon.paths import find_paths
from cli_daemon import FakeDaemon

RUN: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "look"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "ls", "arguments": "{}"}]},
    {"role": "tool", "content": "file one", "tool_call_id": "1"},
    {"role": "assistant", "content": "again"},
    {"role": "tool", "content": "file two", "tool_call_id": "2"},
    {"role": "assistant", "content": "done"},
]


def test_config_set_keeps_comments_and_writes_the_settings_type(home: Path) -> None:
    file = home / "config.toml"
    file.write_text("# mine\n[serve]\nport = 1 # why\n")
    assert main(["config", "set", "serve.port", "8080"]) == 0
    assert main(["config", "set", "serve.insecure_no_auth", "true"]) == 0
    assert main(["config", "set", "chat.system", 'say "hi"']) == 0
    text = file.read_text()
    assert text.startswith("# mine\n[serve]\nport = 8080 # why\n")
    assert "insecure_no_auth = true" in text
    assert [entry.name for entry in home.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(("key", "value"), [("serve.prt", "1"), ("serve.port", "high"), ("model.kv_type", "q2")])
def test_config_set_leaves_the_file_alone_when_the_result_is_invalid(
    home: Path, key: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "config.toml").write_text("[serve]\nport = 1\n")
    assert main(["config", "set", key, value]) == 2
    assert (home / "config.toml").read_text() == "[serve]\nport = 1\n"
    assert key in capsys.readouterr().err


def test_config_show_names_the_origin(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "config.toml").write_text("[chat]\nmax_tokens = 9\n")
    monkeypatch.setenv("AKASHIC_SERVE_PORT", "81")
    assert main(["config", "show", "--origin", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == setting_names()
    assert shown["serve.port"] == {"value": 81, "origin": "env"}
    assert shown["chat.max_tokens"] == {"value": 9, "origin": "file"}


def test_units_are_those_that_people_read() -> None:
    assert [size(0), size(1023), size(1024), size((1 << 20) - 1)] == ["0 B", "1023 B", "1.0 KiB", "1.0 MiB"]
    assert [duration(None), duration(0.0124), duration(0.9999), duration(59.999)] == [
        "-",
        "12 ms",
        "1.00 s",
        "1 min 00 s",
    ]
    assert [duration(3600), duration(90000)] == ["1 h 00 min", "1 d 1 h"]
    assert [ago(0), ago(10, 10.5), ago(10, 13)] == ["-", "now", "3 s ago"]


@given(st.lists(st.sampled_from(["a\n", "\n", "```\n", "~~~\n", "- b"])))
def test_split_markdown_loses_no_text_and_never_cuts_inside_a_fence(parts: list[str]) -> None:
    text = "".join(parts)
    closed, rest = split_blocks(text)
    assert (closed + rest).replace("\n", "") == text.replace("\n", "")
    assert text.endswith(rest)
    assert split_blocks(closed + "\n\n")[1] == ""


def test_replayed_edits_are_those_of_a_pruning_client() -> None:
    assert Edit.parse("none").apply(RUN) is RUN
    pruned = Edit.parse("prune:1").apply(RUN)
    assert [m["content"] for m in pruned if m["role"] == "tool"] == [REMOVED_TEXT, "file two"]
    omitted = Edit.parse("omit:0").apply(RUN)
    assert [m for m in RUN if m["role"] != "tool"] == omitted
    with pytest.raises(UsageError, match="prune:x"):
        Edit.parse("prune:x")


def test_a_run_is_read_from_an_object_a_list_and_lines_and_calls_take_openais_form(tmp_path: Path) -> None:
    texts = [json.dumps({"messages": RUN}), json.dumps(RUN), "\n".join(map(json.dumps, RUN))]
    for text in texts:
        (tmp_path / "run.json").write_text(text)
        run = read_run(tmp_path / "run.json")
        assert [len(request) for request in run.requests(Edit("none"))] == [2, 4, 6]
        assert run.messages[2]["tool_calls"][0]["function"] == {"name": "ls", "arguments": "{}"}
    (tmp_path / "run.json").write_text('{"messages": [{"role": "user", "content": "x"}]}')
    with pytest.raises(TranscriptError, match="no answer"):
        read_run(tmp_path / "run.json")


def test_unique_tokens_are_growth_or_the_share_of_unseen_messages() -> None:
    growing = UniqueTokens(is_edited=False)
    assert [growing.add([], prompt) for prompt in (100, 130, 130)] == [100, 30, 0]
    edited = UniqueTokens(is_edited=True)
    assert edited.add(RUN[:2], 100) == 100
    assert 0 < edited.add(RUN[1:3], 100) < 100
    assert edited.add(RUN[1:3], 100) == 0


def test_percentiles_are_nearest_rank() -> None:
    assert percentile([3, 1, 2, 4], 0.5) == 2
    assert percentile(list(range(1, 101)), 0.95) == 95
    assert percentile([7], 0.95) == 7


@pytest.mark.parametrize("mode", [[], ["--agents", "2"], ["--agents", "2", "--parallel"]])
def test_replay_measures_every_turn_of_every_run(
    daemon: FakeDaemon, tmp_path: Path, mode: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"messages": RUN}))
    files = [str(tmp_path / f"{name}.json") for name in ("a", "b", "c")]
    extra = '{"akashic": {"session": "$SESSION"}}'
    arguments = ["bench", "replay", *files, *mode, "--extra", extra, "--json", "--out", str(tmp_path / "out.json")]
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    prompts = sum(sum(len(m["content"]) for m in RUN[:i]) for i in (2, 4, 6))
    assert (result["turns"], result["prompt_tokens"], result["computed_tokens"]) == (9, 3 * prompts, 9)
    turns = json.loads((tmp_path / "out.json").read_text())["runs"][2]["turn_list"]
    assert [turn["turn"] for turn in turns] == [0, 1, 2]
    bodies = [body for _, path, body in daemon.requests if path == "/v1/chat/completions"]
    assert {body["akashic"]["session"] for body in bodies} == {"replay-0", "replay-1", "replay-2"}
    assert {body["model"] for body in bodies} == {"tiny"}


def test_a_run_that_is_refused_ends_with_the_error_and_the_others_go_on(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = [*RUN[:4], {**RUN[4], "content": "x" * 20_000}, *RUN[5:]]
    (tmp_path / "long.json").write_text(json.dumps(long))
    (tmp_path / "short.json").write_text(json.dumps(RUN))
    assert main(["bench", "replay", str(tmp_path / "long.json"), str(tmp_path / "short.json")]) == 2
    said = capsys.readouterr()
    assert "long ended after 2 of 3 turns" in said.err
    assert "the prompt is too long" in said.err
    assert "all\t5\t" in said.out


def test_a_plot_without_matplotlib_is_refused_before_the_work(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(RUN))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", "replay", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]) == 2
    assert "matplotlib isn't installed" in capsys.readouterr().err
    assert daemon.requests == []


def test_the_man_pages_are_up_to_date_and_name_every_command_option_and_setting() -> None:
    pages = {**man_pages.man_pages(), **api_pages.api_pages()}
    for place, text in pages.items():
        assert (generate.ROOT / generate.MAN / place).read_text() == text
    written = {p.relative_to(generate.ROOT / generate.MAN) for p in (generate.ROOT / generate.MAN).rglob("akashic*")}
    assert written - set(pages) == {Path(f"man7/akashic-{name}.7") for name in ("ops", "cluster", "guide")}
    for name, command in command_tree.commands():
        page = pages[Path(f"man1/akashic-{name.split()[1]}.1")]
        assert roff.roff(command_tree.usage(name, command)) in page
        for option, _ in command_tree.options(command):
            assert roff.roff(option) in page
    assert all(f"\\fB{name}\\fR" in pages[Path("man5/akashic-config.5")] for name in setting_names())


def test_markers_are_filled_and_filling_twice_changes_nothing() -> None:
    text = "a\n<!-- generated: settings -->\nstale text\n<!-- end -->\nb\n<!-- generated: commands -->\n<!-- end -->\n"
    filled = generate.fill_markers(text)
    assert "stale text" not in filled
    assert "| `serve.port` | `0` |" in filled
    assert "| `akashic chat [PROMPT]` |" in filled
    assert generate.fill_markers(filled) == filled
    with pytest.raises(UsageError, match="other"):
        generate.fill_markers("<!-- generated: other -->\n<!-- end -->")


def test_doctor_finds_an_open_socket_folder_broken_settings_and_another_protocol(
    daemon: FakeDaemon, home: Path
) -> None:
    (home / "run").chmod(0o755)
    (home / "config.toml").write_text("[serve]\nprt = 1\n")
    daemon.protocol_version = 99
    findings = {finding.check: finding for finding in diagnose()}
    for check in ("socket_folder", "settings", "daemon"):
        assert findings[check].level is Level.FAIL, check
        assert findings[check].to_do, check
    assert findings["python"].level is Level.OK
    assert main(["doctor", "--json"]) == 1


def test_doctor_finds_a_socket_path_that_the_kernel_refuses(tmp_path: Path) -> None:
    paths = find_paths({"AKASHIC_HOME": str(tmp_path / ("x" * 120))})
    assert check_socket_folder(paths).level is Level.FAIL
