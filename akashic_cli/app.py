"""The tree of commands. Importing it is cheap: each command imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from akashic_cli.commands import (
    bench,
    cache,
    chat,
    completion,
    config,
    ctx,
    daemon,
    demo,
    doctor,
    explain,
    launch,
    mcp,
    mem,
    model,
    policy,
    serve,
    session,
    stats,
    transcript,
)
from akashic_cli.options import HomeOption

app = typer.Typer(
    name="akashic",
    help="A local model with an editable KV cache: nothing that was computed once is computed again.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='To begin: akashic chat "What is a KV cache?", akashic demo, or akashic launch claude. When something is wrong: '
    "akashic doctor. Step by step: man akashic-guide.",
)


def _version(value: bool) -> None:
    if value:
        from akashic_daemon import __version__

        typer.echo(f"akashic {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Talk to a local model, and keep everything it has computed."""


app.command("serve")(serve.serve)
app.add_typer(daemon.app, name="daemon")
app.command("chat")(chat.chat)
app.command("import")(transcript.import_transcript)
app.add_typer(session.app, name="session")
app.add_typer(ctx.app, name="ctx")
app.command("explain")(explain.explain)
app.add_typer(cache.app, name="cache")
app.add_typer(mem.app, name="mem")
app.add_typer(policy.app, name="policy")
app.command("stats")(stats.stats)
app.add_typer(bench.app, name="bench")
app.add_typer(model.app, name="model")
app.command("launch")(launch.launch)
app.command("mcp")(mcp.mcp)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.add_typer(config.app, name="config")
app.command("completion")(completion.completion)
