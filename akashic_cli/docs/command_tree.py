"""Commands, options, arguments and settings as data, for pages that are generated from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from akashic_cli.app import app
from akashic_daemon.config import Config


def commands() -> Iterator[tuple[str, Any]]:
    """Give every command that does something: its full name and click's object of it."""
    yield from leaves("akashic", get_command(app))


def groups() -> Iterator[tuple[str, Any]]:
    """Give every command right below `akashic`: its name and click's object of it."""
    yield from getattr(get_command(app), "commands", {}).items()


def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Give the commands below one that do something; itself if it does."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child in children:
        yield from leaves(f"{name} {child}", children[child])


def options(command: Any) -> list[tuple[str, str]]:
    """Return the options of a command as people type them, with their help; defaults are named if they say something."""
    found = []
    for parameter in command.params:
        if parameter.param_type_name != "option" or getattr(parameter, "hidden", False):
            continue
        spelling = ", ".join([*sorted(parameter.opts, key=len), *parameter.secondary_opts])
        if not parameter.is_flag:
            spelling += f" {parameter.metavar or _value_word(parameter)}"
        default = parameter.default
        is_telling = isinstance(default, (str, int, float)) and not isinstance(default, bool)
        found.append((spelling, f"{parameter.help} Default: {default}." if is_telling else parameter.help))
    return found


def arguments(command: Any) -> list[tuple[str, str]]:
    """Return the arguments of a command with their help."""
    found = [p for p in command.params if p.param_type_name == "argument"]
    return [(_argument_word(p), getattr(p, "help", None) or "") for p in found]


def _argument_word(parameter: Any) -> str:
    word = f"{parameter.metavar or parameter.name.upper()}{'...' if parameter.nargs == -1 else ''}"
    return word if parameter.required else f"[{word}]"


def _value_word(parameter: Any) -> str:
    """Name an option's value after the option; types are Typer's own affair and differ between its versions."""
    return str(max(parameter.opts, key=len)).rpartition("-")[2].upper()


def summary(command: Any) -> str:
    """Return the first paragraph of a command's help."""
    return (command.help or "").strip().split("\n\n")[0].replace("\n", " ")


def settings() -> Iterator[tuple[str, str, str]]:
    """Give every setting: its name, its default as JSON writes it, what it means."""
    defaults = Config()
    for section in Config.model_fields:
        body = getattr(defaults, section)
        for key, field in type(body).model_fields.items():
            value = getattr(body, key)
            shown = str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else value
            yield f"{section}.{key}", str(shown), field.description or ""


def usage(name: str, command: Any) -> str:
    """Return a command with its arguments."""
    return " ".join([name] + [term for term, _ in arguments(command)])
