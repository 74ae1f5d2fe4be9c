"""stdout for data, stderr for talk. Colour only where a terminal shows it and NO_COLOR isn't set (rich sees to that)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH_CELLS = 10_000
"""Width of output that isn't a terminal: nothing is wrapped or cut, so that lines can be processed."""


def out() -> Console:
    """Return the console of stdout."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PLAIN_WIDTH_CELLS
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)


def err() -> Console:
    """Return the console of stderr."""
    from rich.console import Console

    width = None if sys.stderr.isatty() else PLAIN_WIDTH_CELLS
    return Console(file=sys.stderr, width=width, highlight=False)


def say(text: str) -> None:
    """Print a line of talk on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Return `text` without control characters that would act on the terminal; tabs and line ends stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """Print one line of NDJSON on stdout, at once."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print a table on stdout: with a rule on a terminal, as tab-separated values elsewhere.

    `right` holds the indices of columns that are aligned to the right.
    """
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            print("\t".join(printable(cell).replace("\t", " ").replace("\n", " ") for cell in row))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(columns):
        # Only names and texts may be folded: half a number reads as another one.
        is_number = index in right
        table.add_column(name, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    out().print(table)


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print `name: value` lines on stdout, aligned."""
    width = max((len(name) for name, _ in fields), default=0) + 1
    for name, value in fields:
        print(f"{name + ':':<{width}} {printable(value)}")
