"""install.sh where it needs neither network nor compiler: what it refuses, and that it leaves what isn't its own."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "install.sh"


def install(home: Path, *options: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the installer with a home of its own and no network."""
    env = {
        "HOME": str(home),
        "PATH": os.environ["PATH"] if path is None else path,
        "TMPDIR": str(home),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    return subprocess.run(
        ["/bin/bash", str(SCRIPT), *options],
        env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def test_its_help_names_every_option_that_it_takes(home: Path) -> None:
    done = install(home, "--help")
    assert done.returncode == 0
    taken = [line.split(")")[0].strip() for line in SCRIPT.read_text().splitlines() if line.startswith("    --")]
    options = {option for option in taken if "=" not in option}
    assert {"--offline", "--prefix", "--uninstall"} <= options
    assert [option for option in options if f"  {option} " not in done.stdout] == []


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--nonsense"], 2, "unknown option --nonsense"),
        (["--prefix"], 1, "--prefix needs a folder"),
        (["--offline", "--test"], 1, "--offline can't be combined"),
        (["--offline", "--with", "mcp"], 1, "--offline can't be combined"),
        (["--with"], 1, "--with needs the name"),
        (["--with=mcp,nonsense"], 1, "there is no extra nonsense"),
        (["--uninstall"], 0, "nothing to remove"),
    ],
)
def test_what_it_cant_do_it_says(options: list[str], code: int, said: str, home: Path) -> None:
    done = install(home, *options)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert not (home / ".local").exists()


def test_without_python_it_says_what_to_install(home: Path) -> None:
    tools = home / "tools"
    tools.mkdir()
    for name in ("dirname", "mktemp", "readlink", "rm", "bash"):
        found = next(Path(folder) / name for folder in os.environ["PATH"].split(":") if (Path(folder) / name).exists())
        (tools / name).symlink_to(found)
    done = install(home, path=str(tools))
    assert done.returncode == 1
    assert "no Python 3.11 or newer" in done.stderr
    assert "apt install python3" in done.stderr


def test_offline_without_a_wheel_it_says_so_and_no_compiler_is_looked_for(home: Path) -> None:
    done = install(home, "--offline", "--prefix", str(home / "p"))
    assert done.returncode == 1
    assert "the cache has no llama.cpp that was built for this machine" in done.stderr
    assert "without --offline" in done.stderr
    assert not (home / "p" / "bin" / "akashic").exists()


def test_what_is_somebody_elses_stays(home: Path) -> None:
    theirs = home / "p" / "venv"
    theirs.mkdir(parents=True)
    (theirs / "important").write_text("mine")
    for options in (["--prefix", str(home / "p")], ["--prefix", str(home / "p"), "--uninstall"]):
        done = install(home, *options)
        assert done.returncode == 1
        assert "not made by this script" in done.stderr
    assert (theirs / "important").read_text() == "mine"


def test_uninstalling_removes_what_it_made_and_says_where_the_rest_is(home: Path) -> None:
    venv, manuals = home / ".local/share/akashic/venv", home / ".local/share/man/man1"
    for folder in (
        venv / "bin",
        venv / "share/man/man1",
        manuals,
        home / ".local/bin",
        home / ".local/share/akashic/store",
    ):
        folder.mkdir(parents=True)
    (venv / ".akashic").touch()
    (venv / "share/man/man1/akashic.1").touch()
    (manuals / "akashic.1").symlink_to(venv / "share/man/man1/akashic.1")
    (manuals / "other.1").touch()
    (home / ".local/bin/akashic").symlink_to(venv / "bin/akashic")
    (home / ".local/share/akashic/store/akashic.db").write_text("sessions")
    done = install(home, "--uninstall")
    assert done.returncode == 0, done.stderr
    assert re.search(rf"  {home}/.local/share/akashic/store  \S+, sessions and memory\n", done.stderr)
    left = {str(p.relative_to(home)) for p in (home / ".local").rglob("*") if p.is_file() or p.is_symlink()}
    assert left == {".local/share/akashic/store/akashic.db", ".local/share/man/man1/other.1"}
    assert not (home / ".local/bin").exists()
