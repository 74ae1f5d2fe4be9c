"""The ways in which one prompt may be computed; the cheapest in the given order of preference is taken.

- `program`: the whole history with its cache operations where they stand, faithful to the last one.
- `plain`: what is visible, as text of its own: nothing dropped was ever seen. Exact when there are no operations; dear
  when operations were the point, cheap when nothing is cached (DESIGN section 4, cold start).
- `edited`: an earlier computation of the session, continued by the operations that make it show this prompt.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Literal

from akashic_daemon.program.active import active_cache
from akashic_daemon.program.align import Edit
from akashic_daemon.program.path import Path

RouteKind = Literal["program", "plain", "edited"]


@dataclass(frozen=True, slots=True)
class Route:
    """A path that shows the prompt.

    owners: the message of each token; the count of messages for the prompt's open end, -1 for what the request lacks.
    """

    kind: RouteKind
    path: Path
    owners: array[int]
    visible_tokens: int
    next_position: int
    notes: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()

    @staticmethod
    def of(
        kind: RouteKind, path: Path, owners: array[int], notes: tuple[str, ...] = (), edits: tuple[Edit, ...] = ()
    ) -> Route:
        """Return a route, with its active cache counted."""
        state = active_cache(path)
        return Route(kind, path, owners, state.tokens, state.next_position, notes, edits)

    @property
    def dropped_tokens(self) -> int:
        """Tokens of the path that the next one doesn't see."""
        return len(self.path.tokens) - self.visible_tokens
