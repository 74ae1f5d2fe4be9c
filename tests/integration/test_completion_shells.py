"""What Tab offers in the shells themselves, where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = """eval "$(akashic completion bash)"
complete -p akashic
COMP_WORDS=({words}) COMP_CWORD={last}
_akashic_completion akashic
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """autoload -U compinit; compinit -u -D
eval "$(akashic completion zsh)"
print -- $_comps[akashic]
_arguments() {{ print -- "$@" }}
words=({words}) CURRENT={count}
_akashic_completion
"""
FISH = """akashic completion fish | source
complete -C "{words}"
"""


def offered(shell: str, script: str, words: str, home: Path) -> str:
    """Return what a shell prints when it completes the last word."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"no {shell} here")
    bin_dir = home / "bin"
    bin_dir.mkdir()
    launcher = bin_dir / "akashic"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m akashic_cli "$@"\n')
    launcher.chmod(0o755)
    env = {"PATH": f"{bin_dir}:{os.environ['PATH']}", "HOME": str(home), "AKASHIC_HOME": str(home), "LANG": "C.UTF-8"}
    count = len(words.split())
    done = subprocess.run(
        [found, *({"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]), "-c", script.format(words=words, last=count - 1, count=count)],
        env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("shell", "script"), [("bash", BASH), ("zsh", ZSH), ("fish", FISH)])
@pytest.mark.parametrize(
    ("words", "wanted", "other"),
    [("akashic se", "session", "stats"), ("akashic config set cache.ra", "cache.ram_bytes", "cache.ssd_bytes")],
)
def test_a_shell_completes_commands_and_settings(
    shell: str, script: str, words: str, wanted: str, other: str, home: Path
) -> None:
    printed = offered(shell, script, words, home)
    assert wanted in printed
    assert other not in printed
