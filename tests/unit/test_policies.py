"""Finding policies by name: ours and the user's files, and what is wrong with a file in words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from akashic_cli.__main__ import main
from akashic_daemon.context.policies import PolicyShelf
from akashic_daemon.errors import BadRequest, ConfigError
from akashic_daemon.paths import find_paths
from akashic_daemon.program.policy import builtin_names

MINE = 'policy mine\nabout "Keeps few."\nparam keep = 2\nwhen tool_results > keep: drop tool[:-keep]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AKASHIC_HOME", str(tmp_path))
    (tmp_path / "policies").mkdir()
    return tmp_path / "policies"


@pytest.fixture
def shelf(folder: Path) -> PolicyShelf:
    return PolicyShelf(find_paths())


def test_policies_of_ours_are_found_also_without_a_folder(tmp_path: Path) -> None:
    shelf = PolicyShelf(find_paths({"AKASHIC_HOME": str(tmp_path / "none")}))
    assert [p.name for p in shelf.all()] == builtin_names()
    assert str(shelf.find("window:recent=3")).startswith("window:sink=2,recent=3")


def test_a_users_file_is_found_by_its_name_with_parameters(folder: Path, shelf: PolicyShelf) -> None:
    (folder / "mine.policy").write_text(MINE)
    assert str(shelf.find("mine:keep=5")) == "mine:keep=5"
    assert str(shelf.find("mine")) == "mine:keep=2"
    assert shelf.source("mine") == MINE
    info = shelf.all()[-1]
    assert (info.name, info.about, info.parameters, info.problem) == ("mine", "Keeps few.", {"keep": "2"}, None)
    assert info.rules == ["when tool_results > keep: drop tool[:-keep]"]


def test_an_edited_file_holds_from_the_next_look_on(folder: Path, shelf: PolicyShelf) -> None:
    file = folder / "mine.policy"
    file.write_text(MINE)
    assert str(shelf.find("mine")) == "mine:keep=2"
    file.write_text(MINE.replace("keep = 2", "keep = 7"))
    os.utime(file, ns=(1, 1))
    assert str(shelf.find("mine")) == "mine:keep=7"


def test_an_unknown_name_is_refused_with_the_nearest_of_all(folder: Path, shelf: PolicyShelf) -> None:
    (folder / "mine.policy").write_text(MINE)
    for call in (shelf.find, shelf.source):
        for name, near in (("mina", "mine"), ("windw", "window")):
            with pytest.raises(BadRequest) as caught:
                call(name)
            assert caught.value.hint == f"did you mean {near!r}?"
    with pytest.raises(BadRequest, match="no policy"):
        shelf.find("../mine")
    with pytest.raises(BadRequest, match="no parameter 'kep'"):
        shelf.find("mine:kep=2")


def test_a_file_that_cannot_be_used_says_why_and_the_others_stay(folder: Path, shelf: PolicyShelf) -> None:
    (folder / "mine.policy").write_text(MINE)
    (folder / "broken.policy").write_text("policy broken\nwhen tool_results > : repos\n")
    (folder / "other.policy").write_text(MINE)
    (folder / "window.policy").write_text(MINE)
    (folder / "bytes.policy").write_bytes(b"policy \xff")
    problems = {p.name: p.problem or "" for p in shelf.all() if p.path is not None}
    assert problems["mine"] == ""
    assert "broken.policy: line 2, column 21" in problems["broken"]
    assert "calls itself 'mine'" in problems["other"]
    assert "has a policy of that name itself" in problems["window"]
    assert "not UTF-8" in problems["bytes"]
    with pytest.raises(BadRequest, match=r"broken\.policy: line 2"):
        shelf.find("broken")
    with pytest.raises(ConfigError, match="not UTF-8"):
        shelf.find("bytes")
    assert shelf.find("window").name == "window"
    assert shelf.source("window") != MINE


def test_the_commands_need_no_daemon(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.policy").write_text(MINE)
    assert main(["policy", "list"]) == 0
    assert f"mine\tkeep=2\tKeeps few.\t{folder / 'mine.policy'}" in capsys.readouterr().out
    assert main(["policy", "list", "--json"]) == 0
    assert [p["name"] for p in json.loads(capsys.readouterr().out)] == [*builtin_names(), "mine"]
    assert main(["policy", "show", "mine"]) == 0
    assert capsys.readouterr().out == MINE
    assert main(["policy", "show", "window", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"].startswith("policy window\n")
    assert main(["policy", "show", "windw"]) == 2
    assert "did you mean 'window'?" in capsys.readouterr().err
    assert not (folder.parent / "run").exists()


def test_check_tells_findings_and_fails_only_on_what_cannot_be_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, odd, bad = folder / "mine.policy", folder / "odd.policy", folder / "bad.policy"
    good.write_text(MINE)
    odd.write_text("policy odd\nparam unused = 1\nwhen tool_results > 2: drop tool[:-2]\n")
    bad.write_text("policy bad\nwhen tool_results > 2 and tool_results < 1: repos\n")
    assert main(["policy", "check", str(good)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["policy", "check", str(odd)]) == 0
    assert "-\twarning\tparameter unused is never used" in capsys.readouterr().out
    assert main(["policy", "check", str(bad), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [(f["line"], f["severity"]) for f in document["findings"]] == [(2, "error")]
    assert main(["policy", "check", str(folder / "none.policy")]) == 2
    assert "No such file" in capsys.readouterr().err
    bad.write_bytes(b"\xff")
    assert main(["policy", "check", str(bad)]) == 2
    assert "not UTF-8" in capsys.readouterr().err
