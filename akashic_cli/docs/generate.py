"""Generates the man pages and the tables of README.md from the command tree, the settings, the routes and the errors.

`python -m akashic_cli.docs write` writes them, `check` fails when they are out of date. The result depends on nothing
but the code: no width of a terminal, no date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from akashic_cli.docs.api_pages import api_pages
from akashic_cli.docs.command_tree import commands, settings, summary, usage
from akashic_cli.docs.man_pages import man_pages
from akashic_daemon.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
MAN = Path("man")
README = Path("README.md")


def command_table() -> str:
    """Return the commands as a Markdown table."""
    rows = [f"| `{_cell(usage(name, command))}` | {_cell(summary(command))} |" for name, command in commands()]
    return "\n".join(["| command | what it does |", "| --- | --- |", *rows])


def settings_table() -> str:
    """Return the settings as a Markdown table."""
    rows = [f"| `{name}` | `{_cell(default)}` | {_cell(text)} |" for name, default, text in settings()]
    return "\n".join(["| setting | default | meaning |", "| --- | --- | --- |", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def fill_markers(text: str) -> str:
    """Return a page with the parts between `<!-- generated: NAME -->` and `<!-- end -->` made anew."""
    tables = {"commands": command_table, "settings": settings_table}

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name not in tables:
            raise UsageError(f"generating a part of {README}: unknown name {name!r}", hint=", ".join(tables))
        return f"<!-- generated: {name} -->\n{tables[name]()}\n<!-- end -->"

    return re.sub(r"<!-- generated: ([\w-]+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def generated(root: Path) -> dict[Path, str]:
    """Return every generated file below the project's folder with what it should hold."""
    files = {root / MAN / place: text for place, text in {**man_pages(), **api_pages()}.items()}
    readme = root / README
    if readme.exists():
        files[readme] = fill_markers(readme.read_text(encoding="utf-8"))
    return files


def main(argv: list[str]) -> int:
    """Write or check; return the exit code."""
    if argv not in (["write"], ["check"]):
        print("usage: python -m akashic_cli.docs write|check", file=sys.stderr)
        return 2
    stale = [
        (path, text)
        for path, text in generated(ROOT).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        if argv == ["write"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)
        else:
            print(f"{path.relative_to(ROOT)} is out of date: `python -m akashic_cli.docs write`", file=sys.stderr)
    return 1 if stale and argv == ["check"] else 0
