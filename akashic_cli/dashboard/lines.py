"""Lines of a fixed width: fields, tables, sparklines and two panes beside each other. Cut, never wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from akashic_cli.render.output import printable

_LEVELS = "▁▂▃▄▅▆▇█"
_GAP = 2


def spark(values: Sequence[float], width_cells: int) -> str:
    """Return the newest values as a line of blocks, the highest as the full one."""
    shown = list(values)[-width_cells:]
    most = max(shown, default=0.0)
    if most <= 0:
        return _LEVELS[0] * len(shown)
    return "".join(_LEVELS[min(len(_LEVELS) - 1, int(value / most * (len(_LEVELS) - 1) + 0.5))] for value in shown)


def cut(text: str, width_cells: int) -> str:
    """Return a text in so many cells, the end left out with a mark."""
    flat = printable(text).replace("\n", " ").replace("\t", " ")
    if cell_len(flat) <= width_cells:
        return flat
    return set_cell_size(flat, max(0, width_cells - 1)).rstrip() + "…" if width_cells > 0 else ""


def fields(pairs: Sequence[tuple[str, str]], width_cells: int) -> list[Text]:
    """Return a line for each name and value."""
    names = max((cell_len(name) for name, _ in pairs), default=0)
    lines = []
    for name, value in pairs:
        line = Text(set_cell_size(name, names), style="bold")
        lines.append(line.append(" " * _GAP + cut(value, width_cells - names - _GAP), style="not bold"))
    return lines


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width_cells: int, *, chosen: int | None = None
) -> list[Text]:
    """Return a heading and a line for each row; the widest column gives way. chosen: the row that is marked."""
    cells = [[printable(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(cell_len(row[i]) for row in cells) for i in range(len(columns))]
    while sum(widths) + _GAP * (len(widths) - 1) > width_cells and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for number, row in enumerate(cells):
        text = (" " * _GAP).join(set_cell_size(cut(cell, size), size) for cell, size in zip(row, widths, strict=True))
        is_chosen = chosen is not None and number == chosen + 1
        lines.append(Text(cut(text, width_cells), style="dim" if number == 0 else "reverse" if is_chosen else ""))
    return lines


def beside(left: Sequence[Text], right: Sequence[Text], width_cells: int) -> list[Text]:
    """Return two panes side by side, the left one in so many cells."""
    lines = []
    for one, other in zip_longest(left, right):
        line = Text() if one is None else one.copy()
        line.truncate(width_cells, pad=True)
        lines.append(line if other is None else Text.assemble(line, " " * _GAP, other))
    return lines
