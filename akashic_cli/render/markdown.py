"""Markdown that is shown while it is still being written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from rich.live import Live
from rich.markdown import Markdown

from akashic_cli.render.output import out, printable


class MarkdownStream(AbstractContextManager[Callable[[str], None]]):
    """Prints finished blocks for good and redraws only the last one, so that long answers don't flicker or repeat."""

    def __init__(self) -> None:
        self._console = out()
        self._live = Live(console=self._console, auto_refresh=False)
        self._open = ""

    def __enter__(self) -> Callable[[str], None]:
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            self._live.update(Markdown(self._open), refresh=True)
            self._live.stop()

    def _show(self, text: str) -> None:
        # Started by the first text only: until then a spinner on stderr may own the terminal.
        self._live.start()
        self._open += printable(text)
        closed, self._open = split_blocks(self._open)
        if closed:
            self._live.update("")
            self._console.print(Markdown(closed))
            self._console.print()
        self._live.update(Markdown(self._open), refresh=True)


def split_blocks(text: str) -> tuple[str, str]:
    """Split Markdown after its last finished block: a blank line outside of a code fence ends one."""
    fence = ""
    offset = cut = 0
    for line in text.splitlines(keepends=True):
        mark = line.lstrip()[:3]
        if mark in ("```", "~~~") and fence in ("", mark):
            fence = "" if fence else mark
        offset += len(line)
        if not fence and not line.strip() and line.endswith("\n"):
            cut = offset
    return text[:cut].strip("\n"), text[cut:]
