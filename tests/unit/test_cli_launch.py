"""Coding agents on this daemon: what they are told, and how they are started."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from akashic_cli.__main__ import main
from akashic_cli.launch import Agent, Setup, Target, setup
from akashic_daemon.errors import NotFound, UsageError
from akashic_daemon.paths import ensure_private_dir, find_paths
from akashic_daemon.protocol.native import ModelDetail, ModelSummary
from cli_daemon import FakeDaemon, listening

TARGET = Target("http://127.0.0.1:8642", "s3cret token", "tiny", 8192)
UNKNOWN = Target("http://127.0.0.1:8642", "s3cret", "tiny", None)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    monkeypatch.setenv("AKASHIC_HOME", str(tmp_path))
    ensure_private_dir(find_paths().store_dir)
    find_paths().token_file.write_text("the-token\n")
    with listening() as server:
        server.tcp = "http://127.0.0.1:8642"
        yield server


def codex_config(made: Setup) -> dict[str, object]:
    assert made.command[1::2] == ("-c",) * (len(made.command) // 2)
    return tomllib.loads("\n".join(made.command[2::2]))


def test_claude_is_told_of_the_daemon_for_every_kind_of_model_and_of_the_context_that_fits() -> None:
    made = setup(Agent.claude, TARGET)
    assert made.command == ("claude",)
    assert made.env["ANTHROPIC_BASE_URL"] == TARGET.url
    assert made.env["ANTHROPIC_AUTH_TOKEN"] == TARGET.token
    models = [value for name, value in made.env.items() if name.endswith("_MODEL")]
    assert models == ["tiny"] * 5
    assert int(made.env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"]) + int(made.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) == 8192


def test_codex_gets_a_provider_in_toml_and_the_token_by_the_environment() -> None:
    made = setup(Agent.codex, TARGET)
    config = codex_config(made)
    provider = config["model_providers"]["akashic"]  # type: ignore[index]
    assert provider["base_url"] == "http://127.0.0.1:8642/v1"
    assert provider["wire_api"] == "responses"
    assert made.env[provider["env_key"]] == TARGET.token
    assert config["model_context_window"] == 8192
    assert config["model_auto_compact_token_limit"] == 6144


def test_opencode_gets_a_provider_with_the_models_limits() -> None:
    made = setup(Agent.opencode, TARGET)
    config = json.loads(made.env["OPENCODE_CONFIG_CONTENT"])
    provider = config["provider"]["akashic"]
    assert provider["models"]["tiny"]["limit"] == {"context": 8192, "output": 2048}
    assert provider["options"]["apiKey"] == "{env:LOCAL_MODEL_API_KEY}"
    assert config["model"] == "akashic/tiny"


def test_aider_gets_the_model_under_its_openai_provider() -> None:
    made = setup(Agent.aider, TARGET)
    assert made.command[:3] == ("aider", "--model", "openai/tiny")
    assert made.env["OPENAI_API_BASE"] == "http://127.0.0.1:8642/v1"


@pytest.mark.parametrize("agent", list(Agent))
def test_the_token_is_never_an_argument_and_no_variable_reads_as_a_setting_of_ours(agent: Agent) -> None:
    made = setup(agent, TARGET)
    assert not any(TARGET.token in part for part in made.command)
    assert not any(name.startswith("AKASHIC_") for name in made.env)
    assert TARGET.token in made.env.values()


@pytest.mark.parametrize("agent", list(Agent))
def test_an_unknown_window_is_left_out(agent: Agent) -> None:
    made = setup(agent, UNKNOWN)
    assert "None" not in made.as_shell()
    assert "CONTEXT_TOKENS" not in made.as_shell()


def test_what_is_printed_is_read_by_a_shell_as_it_was_meant() -> None:
    made = setup(Agent.codex, TARGET)
    *exports, command = made.as_shell().splitlines()
    assert [shlex.split(line)[1] for line in exports] == [f"{k}={v}" for k, v in made.env.items()]
    assert tuple(shlex.split(command)) == made.command


def test_env_prints_what_a_shell_evaluates(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "export OPENAI_BASE_URL=http://127.0.0.1:8642/v1" in lines
    assert "export ANTHROPIC_AUTH_TOKEN=the-token" in lines
    assert all(line.startswith("export ") for line in lines)


def test_a_client_is_started_with_its_settings_and_its_own_arguments(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent))
    started: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda *call: started.append(call))
    assert main(["launch", "claude", "--", "-p", "hello"]) == 0
    ((path, command, env),) = started
    assert path == str(program)
    assert command == ["claude", "-p", "hello"]
    assert env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "1536"
    assert env["PATH"] == str(program.parent)


@pytest.mark.parametrize(("taken", "port"), [(set[int](), 8642), ({8642}, 40000)])
def test_a_daemon_without_tcp_is_asked_to_listen(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], taken: set[int], port: int
) -> None:
    daemon.tcp, daemon.taken_ports = None, taken
    assert main(["launch", "env"]) == 0
    said = capsys.readouterr()
    assert f"export OPENAI_BASE_URL=http://127.0.0.1:{port}/v1" in said.out.splitlines()
    assert f"config set serve.port {'PORT' if taken else 8642}`" in said.err  # a taken one would end the next start
    assert ("the port is taken" in said.err) == bool(taken)


def test_a_window_that_is_not_known_is_not_told(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "aider").write_text("not a program")
    (tmp_path / "aider").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    unknown = ModelSummary(name="far", path="http://far", default=True, remote=True, size_bytes=0, window_tokens=None)
    daemon.details = [ModelDetail(summary=unknown)]
    assert main(["launch", "aider"]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert "None" not in said
    assert f"error: starting {tmp_path}/aider: Exec format error" in said


def test_a_client_that_is_not_installed_and_a_model_that_is_not_there_are_named(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", "aider"]) == UsageError.exit_code
    assert "starting aider" in capsys.readouterr().err
    assert main(["launch", "aider", "--model", "huge"]) == NotFound.exit_code
    assert "known: tiny" in capsys.readouterr().err
