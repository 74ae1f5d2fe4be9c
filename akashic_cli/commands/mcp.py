"""`akashic mcp`: memory and sessions for other agents."""

from __future__ import annotations

from typing import Annotated

import typer

from akashic_cli.options import HomeOption, NoAutostartOption


def mcp(
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", help="Where is added when a call names nothing, e.g. project:tea [memory.namespace]."
        ),
    ] = None,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Serve memory and sessions as tools of the Model Context Protocol on stdin and stdout; clients start it themselves.

    Claude Code: `claude mcp add akashic -- akashic mcp`. Codex: `codex mcp add akashic -- akashic mcp`. Others:
    {"mcpServers": {"akashic": {"command": "akashic", "args": ["mcp"]}}}. Tools: memory_search, memory_add, memory_forget,
    session_list, session_show.
    """
    from akashic_daemon.errors import Unsupported

    try:
        from akashic_cli.mcp_server import build
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise Unsupported(
            "serving MCP: the package mcp isn't installed",
            hint="`./install.sh --with mcp`",
        ) from error
    build(namespace=namespace, autostart=not no_autostart).run("stdio")
