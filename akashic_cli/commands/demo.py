"""`akashic demo`: what akashic is for, on a small transcript, in a minute."""

from __future__ import annotations

from typing import Annotated

import typer

from akashic_cli.options import HomeOption


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the session there to look at.")] = False,
    home: HomeOption = None,
) -> None:
    """Ask about a small agent transcript, prune its history, ask again, and show what was reused each time."""
    from akashic_cli.demonstration import demonstrate

    demonstrate(keep=keep)
