"""Records what akashic prints on a terminal, as SVG: `python -m akashic_cli.docs.record [NAME ...]` writes man/pictures/NAME.svg.

Each recording is a list of commands, run one after the other in a pseudo-terminal with a home of its own that is removed
afterwards. Nothing of the person who runs this comes in: no home, no host name, no user name. Figures are this machine's.
It needs pyte (`pip install pyte`), which knows what a terminal does with what is printed.
"""

from __future__ import annotations

import fcntl
import html
import itertools
import os
import pty
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import pyte

PICTURES = Path(__file__).resolve().parents[2] / "man" / "pictures"
COLUMNS, ROWS = 120, 50
_CHAR_PX, _LINE_PX, _EDGE_PX = 7.8, 18, 14
Row = list[tuple[int, str, str]]
"""Pieces of a line: where each begins, its text, and how it looks."""
RECORDINGS = {
    "demo": ["akashic demo"],
    "first-answer": [
        "akashic chat --temperature 0 --max-tokens 40 'What is a KV cache?'",
        "akashic daemon status",
    ],
}
_COLOURS = {
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#e3b341",
    "cyan": "#76e3ea",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
}


def run(command: str, env: dict[str, str]) -> str:
    """Run a command on a pseudo-terminal and return what it printed. Raises CalledProcessError when it fails."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    argv = [sys.executable, "-m", "akashic_cli", *shlex.split(command)[1:]]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=env, close_fds=True
    ) as child:
        os.close(theirs)
        printed = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            printed += data
    os.close(ours)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command, printed)
    return printed.decode("utf-8", "replace").replace("\r\n", "\n")


def screen_of(printed: str) -> list[Row]:
    """Return what a terminal shows after all of it, in pieces of one look."""
    screen = pyte.Screen(COLUMNS, 400)
    pyte.Stream(screen).feed(printed.replace("\n", "\r\n"))
    rows: list[Row] = []
    for number in range(screen.cursor.y + 1):
        line = screen.buffer[number]
        cells = [(line[column].data, _look(line[column])) for column in range(COLUMNS)]
        row: Row = []
        for look, group in itertools.groupby(enumerate(cells), key=lambda cell: cell[1][1]):
            part = list(group)
            text = "".join(data for _, (data, _) in part)
            if text.strip():
                row.append((part[0][0], text.rstrip(), look))
        rows.append(row)
    while rows and not rows[-1]:
        rows.pop()
    return rows


def svg(rows: list[Row]) -> str:
    """Return lines as a picture; its text can be selected."""
    width, height = COLUMNS * _CHAR_PX + 2 * _EDGE_PX, len(rows) * _LINE_PX + 2 * _EDGE_PX
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">',
        '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>',
        '<g font-family="ui-monospace,Menlo,Consolas,monospace" font-size="13" fill="#e6edf3">',
    ]
    for number, row in enumerate(rows):
        spans = [
            f'<tspan x="{_EDGE_PX + column * _CHAR_PX:.1f}" textLength="{len(text) * _CHAR_PX:.1f}"{look}>{_shown(text)}</tspan>'
            for column, text, look in row
        ]
        if spans:
            out.append(f'<text y="{_EDGE_PX + (number + 0.8) * _LINE_PX:.1f}">{"".join(spans)}</text>')
    return "\n".join([*out, "</g>", "</svg>", ""])


def _shown(text: str) -> str:
    return html.escape(text).replace(" ", "\xa0")  # others are run together


def _look(cell: pyte.screens.Char) -> str:
    name = cell.fg.removeprefix("bright")
    look = f' fill="{_COLOURS[name]}"' if name in _COLOURS else ""
    return look + (' font-weight="bold"' if cell.bold else "")


def record(name: str) -> None:
    """Run a recording's commands and write its picture."""
    with tempfile.TemporaryDirectory(prefix="ak-") as home:
        kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH", "VIRTUAL_ENV") if key in os.environ}
        env = {**kept, "AKASHIC_HOME": home, "HOME": home, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        printed: list[str] = []
        try:
            printed += [f"\x1b[0;1m$ {command}\x1b[0m\n{run(command, env).strip()}\n\n" for command in RECORDINGS[name]]
        finally:
            subprocess.run(
                [sys.executable, "-m", "akashic_cli", "daemon", "stop"], env=env, capture_output=True, check=False
            )
    rows = screen_of("".join(printed).replace(home, "~"))
    (PICTURES / f"{name}.svg").write_text(svg(rows), encoding="utf-8")
    print(f"wrote man/pictures/{name}.svg, {len(rows)} lines", file=sys.stderr)


def main(names: list[str]) -> int:
    """Make the recordings that are named, all when none is."""
    unknown = [name for name in names if name not in RECORDINGS]
    if unknown:
        print(f"no recording named {unknown[0]!r}: there are {', '.join(RECORDINGS)}", file=sys.stderr)
        return 2
    for name in names or RECORDINGS:
        record(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
