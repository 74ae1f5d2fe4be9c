"""The active cache along a path: which tokens the next one may attend to, and where they stand.

An `ActiveCache` is a value. Visible tokens are kept as *spans*: runs whose index and position both go up by one, so a
long history with few operations is a handful of spans. `version` tells copies apart: 0 is the KV as it was computed, r > 0
the copy that the path's r-th Repos or Shift made because the token's position changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from akashic_daemon.program.path import Drop, Op, Path, Repos, Shift
from akashic_daemon.program.ranges import Range, Ranges, intersect, normal, size, subtract


class Span(NamedTuple):
    """`length` visible tokens: indices from `first`, positions from `position`, in copy `version`."""

    first: int
    length: int
    position: int
    version: int

    @property
    def indices(self) -> Range:
        """Its trajectory indices."""
        return (self.first, self.first + self.length)

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.position + self.length

    def cut(self, start: int, end: int) -> Span:
        """Return the part with indices start <= i < end, which must lie within."""
        return Span(start, end - start, self.position + start - self.first, self.version)


def join(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Join neighbours that go on in index, position and copy."""
    out: list[Span] = []
    for span in spans:
        if out:
            last = out[-1]
            if last.version == span.version and last.first + last.length == span.first and last.end == span.position:
                out[-1] = last._replace(length=last.length + span.length)
                continue
        out.append(span)
    return tuple(out)


@dataclass(frozen=True, slots=True)
class ActiveCache:
    """Spans in order of position. `inserting` tokens of an insertion are still to come, at `insert_at` on."""

    spans: tuple[Span, ...] = ()
    next_index: int = 0
    next_position: int = 0
    repos_count: int = 0
    inserting: int = 0
    insert_at: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens are visible."""
        return sum(s.length for s in self.spans)

    @property
    def position(self) -> int:
        """Where the next token will stand."""
        return self.insert_at if self.inserting else self.next_position

    @property
    def indices(self) -> Ranges:
        """The visible tokens' trajectory indices."""
        return normal(s.indices for s in self.spans)

    def seen(self) -> tuple[Span, ...]:
        """Return what the next token attends to: everything visible, or what precedes an insertion."""
        if not self.inserting:
            return self.spans
        return tuple(s for s in self.spans if s.position < self.insert_at)

    def append(self, count: int) -> ActiveCache:
        """Return the cache after `count` more tokens; an insertion takes at most its own."""
        if count == 0:
            return self
        if not self.inserting:
            added = Span(self.next_index, count, self.next_position, 0)
            return ActiveCache(
                (*self.spans[:-1], *join((*self.spans[-1:], added))),
                self.next_index + count,
                self.next_position + count,
                self.repos_count,
            )
        assert count <= self.inserting, (count, self.inserting)
        added = Span(self.next_index, count, self.insert_at, 0)
        before = [s for s in self.spans if s.position < self.insert_at]
        after = [s for s in self.spans if s.position >= self.insert_at]
        assert not before or before[-1].end <= self.insert_at
        assert not after or after[0].position >= added.end, "an insertion overwrites visible tokens"
        return ActiveCache(
            join((*before, added, *after)),
            self.next_index + count,
            max(self.next_position, added.end),
            self.repos_count,
            self.inserting - count,
            self.insert_at + count,
        )

    def apply(self, op: Op) -> ActiveCache:
        """Return the cache after an operation; may not stand inside an insertion."""
        assert not self.inserting, "an operation inside an insertion"
        if isinstance(op, Drop):
            return self._drop(op)
        if isinstance(op, Repos):
            return self._repos(op)
        if isinstance(op, Shift):
            return self._shift(op)
        return ActiveCache(self.spans, self.next_index, self.next_position, self.repos_count, op.count, op.position)

    def _drop(self, op: Drop) -> ActiveCache:
        kept: list[Span] = []
        low, high = (op.ranges[0][0], op.ranges[-1][1]) if op.ranges else (0, 0)
        for span in self.spans:
            first, length, _, _ = span
            if first >= high or first + length <= low or not intersect((span.indices,), op.ranges):
                kept.append(span)
                continue
            kept.extend(span.cut(start, end) for start, end in subtract((span.indices,), op.ranges))
        return ActiveCache(tuple(kept), self.next_index, self.next_position, self.repos_count)

    def _repos(self, op: Repos) -> ActiveCache:
        version = self.repos_count + 1
        moved: list[Span] = []
        at, hole = 0, op.hole
        for part in cut_at(self.spans, op.hole_at) if hole else self.spans:
            if part.position >= op.hole_at:
                at, hole = at + hole, 0
            moved.append(part if part.position == at else Span(part.first, part.length, at, version))
            at += part.length
        return ActiveCache(join(moved), self.next_index, at + hole, version)

    def _shift(self, op: Shift) -> ActiveCache:
        version = self.repos_count + 1
        moved: list[Span] = []
        for part in cut_at(cut_at(self.spans, op.start), op.end):
            if op.by and op.start <= part.position < op.end:
                part = Span(part.first, part.length, part.position + op.by, version)  # noqa: PLW2901
            assert not moved or moved[-1].end <= part.position, "a shift past visible tokens"
            moved.append(part)
        assert not moved or moved[0].position >= 0, "a shift below position 0"
        end = moved[-1].end if moved else 0
        return ActiveCache(join(moved), self.next_index, max(self.next_position, end), version)

    def moved_by(self, op: Shift) -> int:
        """Return how many tokens a shift would move."""
        return sum(max(0, min(s.end, op.end) - max(s.position, op.start)) for s in self.spans)

    def room_at(self, position: int) -> int | None:
        """Return how many tokens an insertion at `position` may have: up to the next visible one; None is no limit."""
        for span in self.spans:
            if span.end > position:
                return max(0, span.position - position)
        return None

    def dropped_by(self, op: Drop) -> int:
        """Return how many visible tokens the drop would take away."""
        return size(intersect(self.indices, op.ranges))


def cut_at(spans: Iterable[Span], position: int) -> Iterator[Span]:
    """Yield the spans, the one across `position` in two."""
    for span in spans:
        if span.position < position < span.end:
            border = span.first + position - span.position
            yield span.cut(span.first, border)
            yield span.cut(border, span.first + span.length)
        else:
            yield span


def active_cache(path: Path) -> ActiveCache:
    """Return the active cache at the end of a path."""
    state = ActiveCache()
    for state, _ in _course(path):  # noqa: B007 - the last one is wanted
        pass
    return state


def has_tail_gap(path: Path) -> bool:
    """Tell if any token's position doesn't follow the highest one that it sees, as after dropping the tail."""
    return any(tokens and (seen := state.seen()) and seen[-1].end < state.position for state, tokens in _course(path))


def _course(path: Path) -> Iterator[tuple[ActiveCache, int]]:
    """Give each active cache that tokens are appended to, with how many; at the end the last one, with none."""
    state = ActiveCache()
    for step in path.steps():
        if isinstance(step, Op):
            state = state.apply(step)
            continue
        count = len(step)
        while count:
            taken = min(count, state.inserting) if state.inserting else count
            yield state, taken
            state, count = state.append(taken), count - taken
    yield state, 0
