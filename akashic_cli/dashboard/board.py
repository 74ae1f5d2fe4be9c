"""What is on the board: the snapshots so far, the view that is open, what is selected; and what each key does. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from akashic_daemon.protocol.context import Explanation
from akashic_daemon.protocol.memory import MemoryStats
from akashic_daemon.protocol.native import SessionSummary, Stats

VIEWS = ("overview", "sessions", "tiers", "cache", "memory")
_NUMBERED = {str(number): view for number, view in enumerate(VIEWS, 1)}
KEPT_SNAPSHOTS = 240
Wanted = Literal["sessions", "explanation", "memory"]

KEYS = (
    ("1 to 5, tab", "another view"),
    ("up, down, j, k", "choose a session"),
    ("enter, escape", "open it: why its last turn reused what it did; back"),
    ("space", "hold the picture; the daemon goes on"),
    ("?, q", "this help; leave"),
)


@dataclass(slots=True)
class Board:
    """The state of the dashboard. selected: which session of the list; opened: the one whose last turn is shown."""

    history: deque[Stats] = field(default_factory=lambda: deque(maxlen=KEPT_SNAPSHOTS))
    view: str = VIEWS[0]
    selected: int = 0
    opened: str | None = None
    is_held: bool = False
    shows_help: bool = False
    sessions: list[SessionSummary] = field(default_factory=list)
    explanation: Explanation | None = None
    memory: MemoryStats | None = None
    trouble: str = ""

    @property
    def now(self) -> Stats:
        """The newest snapshot."""
        return self.history[-1]

    def take(self, stats: Stats) -> None:
        """Take in a snapshot, unless the picture is held."""
        if not self.is_held or not self.history:
            self.history.append(stats)

    def press(self, key: str) -> bool:
        """Do what a key says; False to leave."""
        if key == "q":
            return False
        if key == "?":
            self.shows_help = not self.shows_help
        elif key == " ":
            self.is_held = not self.is_held
        elif key == "tab":
            self._open_view(VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)])
        elif key in _NUMBERED:
            self._open_view(_NUMBERED[key])
        elif self.view == "sessions":
            self._choose(key)
        return True

    def _open_view(self, view: str) -> None:
        self.view, self.opened, self.shows_help = view, None, False

    def _choose(self, key: str) -> None:
        step = {"up": -1, "k": -1, "down": 1, "j": 1}.get(key, 0)
        if step and self.opened is None:
            self.selected = min(max(0, self.selected + step), max(0, len(self.sessions) - 1))
        elif key == "enter" and self.sessions:
            self.opened = self.sessions[min(self.selected, len(self.sessions) - 1)].session
            self.explanation = None
        elif key == "escape":
            self.opened = None

    @property
    def wanted(self) -> Wanted | None:
        """What the open view shows besides the snapshots."""
        if self.view == "memory":
            return "memory"
        if self.view == "sessions":
            return "sessions" if self.opened is None else "explanation"
        return None

    def series(self, read: Callable[[Stats], float]) -> list[float]:
        """Return a figure over time, oldest first."""
        return [read(stats) for stats in self.history]

    def rates(self, read: Callable[[Stats], float]) -> list[float]:
        """Return how fast a total grew between snapshots, a second; a restarted daemon's begins at nothing."""
        pairs = zip(self.history, list(self.history)[1:], strict=False)
        return [max(0.0, read(b) - read(a)) / max(1e-3, b.at_s - a.at_s) for a, b in pairs]
