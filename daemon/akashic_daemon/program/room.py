"""Making room between visible tokens for a text that is longer than what it replaces, by moving as few of them as possible.

Dropped text leaves free positions. The tokens between the place and the nearest large enough gap move into that gap, on
whichever side fewer have to. They move further than they must: what is spare stays free at the place, so that the next
replacement, mostly a little later in the text, finds a gap nearby. Behind the last token everything is free.
"""

from __future__ import annotations

from collections.abc import Sequence

from akashic_daemon.program.active import ActiveCache, Span, cut_at
from akashic_daemon.program.path import Shift

SPARE_POSITIONS = 64
"""So many more positions become free at the place, where the gap has them."""


def make_room(state: ActiveCache, place: int, lacking: int) -> Shift:
    """Return the shift after which `lacking` or more further positions are free at `place`, where a visible token follows.

    When it moves what precedes, the place itself moves down with the token before it.
    """
    spans = tuple(cut_at(state.spans, place))
    after = [s for s in spans if s.position >= place]
    ways = [_upwards(after, lacking)]
    lower = _downwards([s for s in spans if s.position < place], place, lacking)
    if lower is not None:
        ways.append(lower)
    return min(ways, key=state.moved_by)


def _upwards(following: Sequence[Span], lacking: int) -> Shift:
    start, at = following[0].position, following[0].end
    for span in following[1:]:
        if span.position - at >= lacking:
            return Shift(start, at, _distance(lacking, span.position - at))
        at = span.end
    return Shift(start, at, lacking + SPARE_POSITIONS)


def _downwards(preceding: Sequence[Span], place: int, lacking: int) -> Shift | None:
    start = place
    for span in reversed(preceding):
        if start < place and start - span.end >= lacking:
            return Shift(start, place, -_distance(lacking, start - span.end))
        start = span.position
    return Shift(start, place, -_distance(lacking, start)) if lacking <= start < place else None


def _distance(lacking: int, gap: int) -> int:
    return min(lacking + SPARE_POSITIONS, gap)
