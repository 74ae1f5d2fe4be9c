"""Markdown that is shown while it is still being written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment

from akashic_cli.render.output import out, printable

REDRAWS_PER_S = 10
"""Drawing a long block takes milliseconds of a core that the model needs: not for every token."""


class MarkdownStream(AbstractContextManager[Callable[[str], None]]):
    """Prints finished blocks for good and redraws only the last one, so that long answers don't flicker or repeat."""

    def __init__(self) -> None:
        self._open = ""
        self._is_done = False
        self._console = out()
        self._live = Live(
            console=self._console,
            refresh_per_second=REDRAWS_PER_S,
            get_renderable=self._view,
            vertical_overflow="visible",
        )

    def __enter__(self) -> Callable[[str], None]:
        return self._show

    def __exit__(self, *_: object) -> None:
        self._is_done = True
        self._live.stop()

    def _view(self) -> _Block:
        return _Block(self._open, is_done=self._is_done)

    def _show(self, text: str) -> None:
        closed, self._open = split_blocks(self._open + printable(text))
        if closed:
            self._console.print(Markdown(closed))
            self._console.print()
        # Started by the first text only: until then a spinner on stderr may own the terminal.
        self._live.start()


class _Block:
    """The block that is being written. Until it is done, only as much of its end as the terminal can redraw."""

    def __init__(self, text: str, *, is_done: bool) -> None:
        self._text = text
        self._is_done = is_done

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Give the lines that are to be seen."""
        lines = console.render_lines(Markdown(self._text), options, pad=False)
        for index, line in enumerate(lines if self._is_done else lines[-max(1, console.height - 1) :]):
            if index:
                yield Segment.line()
            yield from line


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
