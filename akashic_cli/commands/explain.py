"""`akashic explain`: why a turn reused what it did."""

from __future__ import annotations

from typing import Annotated

import typer

from akashic_cli.options import HomeOption, JsonOption, NoAutostartOption, PickedSession


def explain(
    session: PickedSession,
    turn: Annotated[
        int | None, typer.Option("--turn", min=1, metavar="N", help="Which turn; the newest when absent.")
    ] = None,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Show, message by message, what a turn reused, moved, dropped and computed, and why it couldn't reuse more."""
    from akashic_cli.client import connect, segment
    from akashic_cli.render.explanation import print_explanation
    from akashic_cli.render.output import print_json
    from akashic_daemon.protocol.context import Explanation

    client, _ = connect(autostart=not no_autostart)
    with client:
        asked = {} if turn is None else {"turn": turn}
        found = Explanation.model_validate(client.get(f"/sessions/{segment(session)}/explain", **asked))
    if as_json:
        print_json(found.model_dump())
    else:
        print_explanation(found)
