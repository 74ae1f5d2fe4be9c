"""`akashic completion`: what makes Tab work in a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    """Shells that can be taught."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the script that completes commands, sessions and models; `eval "$(akashic completion bash)"` uses it."""
    # typer documents the function but doesn't list it as exported.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    print(get_completion_script(prog_name="akashic", complete_var="_AKASHIC_COMPLETE", shell=shell.value))
