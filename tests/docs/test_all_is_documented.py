"""Each command, option, setting, error code, route and field of ours stands on its man page: gathered from the code, not from the generator."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from starlette.routing import Route
from typer.main import get_command

from akashic_cli.app import app
from akashic_cli.docs import api_pages
from akashic_cli.render.explanation import CAUSES
from akashic_daemon.api.app import create_app
from akashic_daemon.config import Config
from akashic_daemon.errors import AkashicError
from akashic_daemon.protocol.native import MissCause, Reuse
from akashic_daemon.protocol.openai import AkashicExtension
from akashic_daemon.service import Service

ROOT = Path(__file__).resolve().parents[2]
MAN = ROOT / "man"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(MAN.glob("man*/akashic*"))


def text_of(page: str) -> str:
    """Return a page as it is read, near enough to look for words."""
    text = (MAN / f"man{page[-1]}" / page).read_text(encoding="utf-8")
    return re.sub(r"\\f[BIR]", "", text).replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


def entries_of(page: str) -> dict[str, str]:
    """Return what stands as a term on a page, with what is said of it."""
    return dict(re.findall(r"^\.TP\n(.*)\n(.*)$", text_of(page), re.MULTILINE))


def leaves(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Give every command that does something."""
    children = getattr(command, "commands", None)
    if children is None:
        yield names, command
    for name, child in (children or {}).items():
        yield from leaves(child, *names, name)


COMMANDS = list(leaves(get_command(app)))


def kinds(root: type[AkashicError] = AkashicError) -> Iterator[type[AkashicError]]:
    """Give every kind of error that can be raised."""
    yield root
    for sub in root.__subclasses__():
        if sub.__module__.startswith("akashic_daemon"):
            yield from kinds(sub)


def routes() -> list[Route]:
    """Return the routes of the application itself."""
    service = cast(Service, SimpleNamespace(paths=SimpleNamespace(socket=Path("akashic.sock"))))
    return [route for route in create_app(service, token=None).routes if isinstance(route, Route)]


@pytest.mark.parametrize("names", [names for names, _ in COMMANDS], ids=" ".join)
def test_a_command_has_its_page_and_a_row_in_the_readme(names: tuple[str, ...]) -> None:
    whole = "akashic " + " ".join(names)
    assert re.search(rf"^\.(B|SS) {re.escape(whole)}( |$)", text_of(f"akashic-{names[0]}.1"), re.MULTILINE)
    assert re.search(rf"^\| `{re.escape(whole)}[ `]", README, re.MULTILINE)
    assert f"akashic-{names[0]}(1)" in text_of("akashic.1")


def test_every_option_stands_on_its_commands_page_and_says_what_it_does() -> None:
    lacking = []
    for names, command in COMMANDS:
        text = text_of(f"akashic-{names[0]}.1")
        part = text.split(f".SS akashic {' '.join(names)}", 1)[-1].split("\n.SS ", 1)[0]
        for parameter in (p for p in command.params if not getattr(p, "hidden", False)):
            words = [*parameter.opts, *parameter.secondary_opts] if parameter.param_type_name == "option" else []
            lacking += [w for w in words if not re.search(rf"^(.*, )?{re.escape(w)}([ ,].*)?$", part, re.MULTILINE)]
            if not getattr(parameter, "help", None):
                lacking.append(" ".join((*names, parameter.name)))
    assert lacking == []


def test_every_setting_stands_on_its_page_and_in_the_readme_with_its_default() -> None:
    found = entries_of("akashic-config.5")
    for section in Config.model_fields:
        for key, field in type(getattr(Config(), section)).model_fields.items():
            name = f"{section}.{key}"
            assert field.description, name
            assert "Default:" in found[name]
            assert f"| `{name}` |" in README


def test_every_error_code_stands_on_its_page_with_its_status_and_exit_code() -> None:
    found = entries_of("akashic-errors.7")
    codes = {kind.code: kind for kind in kinds()}
    assert set(found) == set(codes)
    for code, kind in codes.items():
        assert found[code].endswith(f"HTTP {kind.http_status}, exit code {kind.exit_code}.")
        assert len(found[code]) > len(f"HTTP {kind.http_status}, exit code {kind.exit_code}.") + 10


def test_every_exit_code_stands_on_the_overview() -> None:
    found = entries_of("akashic.1")
    assert {str(kind.exit_code) for kind in kinds()} <= set(found)


def test_every_route_stands_on_its_page_with_what_it_is_for() -> None:
    found = entries_of("akashic-api.7")
    served = {
        f"{method} {re.sub(r':[a-z]+}', '}', route.path)}"
        for route in routes()
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert len(served) > 50
    assert served - set(found) == set()
    assert {term for term in found if re.match(r"(GET|POST|PUT|DELETE|PATCH) /", term)} == served
    assert all(len(found[term]) > 10 for term in served)


def test_every_field_of_ours_and_every_cause_of_a_miss_is_explained() -> None:
    assert set(api_pages.REQUEST_FIELDS) == set(AkashicExtension.model_fields)
    assert set(api_pages.ANSWER_FIELDS) == set(Reuse.model_fields)
    assert set(CAUSES) == set(get_args(MissCause))
    found = entries_of("akashic-api.7")
    assert {*AkashicExtension.model_fields, *Reuse.model_fields, *CAUSES} <= set(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_is_clean_roff_and_refers_to_pages_that_there_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"\\fB(akashic[\w\\-]*)\\fR\((\d)\)", text)
    names = {f"{name.replace(chr(92), '')}.{section}" for name, section in named}
    assert names <= {p.name for p in PAGES}
    for lint in (["groff", "-man", "-ww", "-Tutf8"], ["mandoc", "-T", "lint", "-W", "warning"]):
        if shutil.which(lint[0]) is not None:
            done = subprocess.run([*lint, str(page)], capture_output=True, text=True, check=False)
            said = (done.stderr + done.stdout * (lint[0] == "mandoc")).splitlines()
            assert [line for line in said if "missing date" not in line] == []
