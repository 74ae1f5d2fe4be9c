"""Commands in README and the guides are commands that there are, with options that they have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from akashic_cli.app import app
from akashic_daemon.config import Config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "man" / "man7").glob("akashic-*.7"))]
TREE = get_command(app)


def lines_of(page: Path) -> Iterator[str]:
    """Give the lines of a page that are typed."""
    text = page.read_text(encoding="utf-8").replace("\\-", "-").replace("\\e\n", "\\\n").replace("\\\n", " ")
    if page.suffix == ".md":
        text = text.split("## Commands")[0]
        yield from re.findall(r"^(?:\$ )(?:\w+=\S+ )*(akashic .*)$", text, re.MULTILINE)
        yield from (line for line in re.findall(r"`(akashic [^`]+)`", text) if "$(" not in line)
    else:
        yield from re.findall(
            r"^(akashic .*)$",
            "\n".join(re.findall(r"^\.EX\n(.*?)^\.EE$", text, re.DOTALL | re.MULTILINE)),
            re.MULTILINE,
        )
        yield from re.findall(
            r"^(akashic .*)$",
            "\n".join(re.findall(r"^\.RS 4\n(.*?)^\.RE$", text, re.DOTALL | re.MULTILINE)),
            re.MULTILINE,
        )


def words_of(line: str) -> list[str]:
    """Return the words of a command: no comment, no redirection."""
    words = shlex.split(line, comments=True)
    end = next((i for i, word in enumerate(words) if word in ("<", "|", "&&", ";", ">")), len(words))
    return words[1:end]


def wrong_in(words: list[str]) -> str | None:
    """Return what is wrong in a command; None when nothing is."""
    command: Any = TREE
    while words and getattr(command, "commands", None):
        name, *words = words
        if name.startswith("-"):
            continue
        if name not in command.commands:
            return f"no command {name}"
        command = command.commands[name]
    known = {spelling for p in command.params for spelling in (*p.opts, *p.secondary_opts)} | {"-h", "--help"}
    for word in words:
        if word == "--":
            break
        if re.match(r"-{1,2}[a-z]", word) and word.partition("=")[0] not in known:
            return f"no option {word}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_each_command_on_a_page_can_be_typed(page: Path) -> None:
    found = {line: wrong_in(words_of(line)) for line in lines_of(page)}
    if page.name in ("README.md", "akashic-guide.7"):
        assert len(found) > 20
    assert {line: wrong for line, wrong in found.items() if wrong} == {}


def test_each_setting_that_the_guides_name_exists() -> None:
    known = {
        f"{section}.{key}" for section in Config.model_fields for key in type(getattr(Config(), section)).model_fields
    }
    sections = "|".join(Config.model_fields)
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\-", "-")
        assert set(re.findall(rf"(?:config set |`|\.B )((?:{sections})\.[a-z_]+)", text)) <= known


def test_a_wrong_command_would_be_found() -> None:
    assert wrong_in(["session", "lst"]) == "no command lst"
    assert wrong_in(["chat", "--modle", "m", "hi"]) == "no option --modle"
    assert wrong_in(["chat", "--model", "m", "-s", "x", "hi"]) is None


def test_each_picture_and_heading_that_the_readme_points_to_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^## (.*)$", text, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert pictures
    for picture in pictures:
        drawn = (ROOT / picture).read_text(encoding="utf-8")
        assert drawn.startswith("<svg ")
        assert len(drawn) < 64_000
