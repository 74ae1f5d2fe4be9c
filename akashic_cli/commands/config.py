"""`akashic config`: see and change the settings."""

from __future__ import annotations

from typing import Annotated

import typer

from akashic_cli import complete
from akashic_cli.options import HomeOption, JsonOption

app = typer.Typer(no_args_is_help=True, help="See and change the settings.")


@app.command()
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Print every setting with the value that is in force, as TOML."""
    from akashic_cli.render.output import print_json
    from akashic_cli.settings import toml_value
    from akashic_daemon.config import load
    from akashic_daemon.paths import find_paths

    settings = load(find_paths().config_file)
    values = settings.config.model_dump()
    if as_json:
        flat = {f"{s}.{k}": v for s, body in values.items() for k, v in body.items()}
        print_json({n: {"value": v, "origin": settings.origin[n]} for n, v in flat.items()} if origin else flat)
        return
    for index, (section, body) in enumerate(values.items()):
        print(f"{chr(10) if index else ''}[{section}]")
        for key, value in body.items():
            comment = f"  # {settings.origin[f'{section}.{key}']}" if origin else ""
            print(f"{key} = {toml_value(value)}{comment}")


@app.command()
def path(home: HomeOption = None) -> None:
    """Print where the settings file is, or would be."""
    from akashic_daemon.paths import find_paths

    print(find_paths().config_file)


@app.command("set")
def set_value(
    key: Annotated[
        str, typer.Argument(metavar="SECTION.KEY", help="Name of a setting.", autocompletion=complete.settings)
    ],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="New value.")],
    home: HomeOption = None,
) -> None:
    """Change one setting in the file; comments and everything else stay as they are."""
    from akashic_cli.render.output import say
    from akashic_cli.settings import change_setting, toml_value
    from akashic_daemon.config import load
    from akashic_daemon.paths import find_paths

    file = find_paths().config_file
    written = change_setting(file, key, value)
    say(f"{key} = {toml_value(written)} in {file}; a running daemon takes it up after `akashic daemon restart`")
    if load(file).origin[key] == "env":
        say(f"note: the environment variable AKASHIC_{key.replace('.', '_').upper()} overrides it here")
