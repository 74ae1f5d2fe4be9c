"""Runs the board: one thread takes snapshots, one asks for what the open view shows besides, one listens to keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Event, Thread

from rich.console import Group
from rich.live import Live

from akashic_cli.client import Client, segment
from akashic_cli.dashboard.board import Board, Wanted
from akashic_cli.dashboard.keys import pressed
from akashic_cli.dashboard.views import draw
from akashic_cli.render.output import out
from akashic_daemon.errors import AkashicError
from akashic_daemon.protocol.context import Explanation
from akashic_daemon.protocol.memory import MemoryStats
from akashic_daemon.protocol.native import SessionList, Stats

_LOOK_S = 0.25
"""How soon a window that was resized is drawn anew."""
_ASK_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Found:
    """What was asked for, for which session, and why there is nothing."""

    wanted: Wanted
    session: str | None
    value: SessionList | Explanation | MemoryStats | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class _End:
    error: AkashicError | None


@dataclass(frozen=True, slots=True)
class _Key:
    name: str


_News = Stats | Found | _Key | _End


def watch(client: Client, interval_s: float) -> None:
    """Show the board until `q` or the stream's end, and leave the last picture on the screen. Raises what ended it."""
    news: Queue[_News] = Queue()
    board, ended, asking = Board(), Event(), Event()
    streaming, polling = Client(client.socket), Client(client.socket)
    threads = [
        Thread(target=_snapshots, args=(streaming, interval_s, news.put, ended), daemon=True),
        Thread(target=_ask, args=(polling, board, news.put, ended, asking), daemon=True),
    ]
    console = out()
    try:
        with (
            Live(console=console, screen=not console.is_dumb_terminal, auto_refresh=False) as live,
            pressed(lambda key: news.put(_Key(key))),
        ):
            for thread in threads:
                thread.start()
            _loop(board, news, live, asking)
    finally:
        ended.set()
        asking.set()
        streaming.close()
        polling.close()
        if board.history and not console.is_dumb_terminal:
            console.print(*_last(board, console.width), sep="\n")


def _loop(board: Board, news: Queue[_News], live: Live, asking: Event) -> None:
    drawn = (0, 0)
    while True:
        size = live.console.size
        try:
            one = news.get(timeout=_LOOK_S)
        except Empty:
            if board.history and size != drawn:
                drawn = _draw(board, live)
            continue
        if isinstance(one, _End):
            if one.error is not None:
                raise one.error
            return
        if isinstance(one, _Key):
            if not board.press(one.name):
                return
            asking.set()
        elif isinstance(one, Stats):
            board.take(one)
        else:
            take(board, one)
        if board.history:
            drawn = _draw(board, live)


def _draw(board: Board, live: Live) -> tuple[int, int]:
    size = live.console.size
    live.update(Group(*draw(board, size.width, size.height)), refresh=True)
    return size


def _last(board: Board, width_cells: int) -> list[object]:
    """Return the overview without the empty lines and the keys."""
    board.view, board.shows_help = "overview", False
    lines = draw(board, width_cells, 60)[1:-1]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    return list(lines)


def take(board: Board, found: Found) -> None:
    """Put on the board what was found, unless it was asked for something that isn't open any more."""
    board.trouble = found.trouble
    if isinstance(found.value, SessionList):
        board.sessions = found.value.sessions
    elif isinstance(found.value, MemoryStats):
        board.memory = found.value
    elif found.wanted == "explanation" and found.session == board.opened:
        board.explanation = found.value


def _snapshots(client: Client, interval_s: float, tell: Callable[[_News], None], ended: Event) -> None:
    try:
        with client.stream("GET", "/stats/stream", params={"interval_s": interval_s}) as snapshots:
            for raw in snapshots:
                if ended.is_set():
                    return
                tell(Stats.model_validate(raw))
        tell(_End(None))
    except AkashicError as error:
        tell(_End(error))
    except RuntimeError:  # its client was closed: the board is left
        tell(_End(None))


def _ask(client: Client, board: Board, tell: Callable[[_News], None], ended: Event, asking: Event) -> None:
    while not ended.is_set():
        wanted, session = board.wanted, board.opened
        asking.clear()
        if wanted is not None:
            tell(ask(client, wanted, session))
        asking.wait(_ASK_EVERY_S)


def ask(client: Client, wanted: Wanted, session: str | None) -> Found:
    """Ask the daemon for what a view shows besides the snapshots."""
    value: SessionList | Explanation | MemoryStats
    try:
        if wanted == "sessions":
            value = SessionList.model_validate(client.get("/sessions"))
        elif wanted == "memory":
            value = MemoryStats.model_validate(client.get("/memory"))
        else:
            value = Explanation.model_validate(client.get(f"/sessions/{segment(session or '')}/explain"))
    except AkashicError as error:
        # A session without a turn of this daemon has nothing to explain; everything else is said.
        is_missing = wanted == "explanation" and error.code == "not_found"
        return Found(wanted, session, None, "" if is_missing else error.message)
    except RuntimeError:  # the client was closed: the board is left
        return Found(wanted, session, None)
    return Found(wanted, session, value)
