"""Recognising a known history in an edited one: which parts stay, go, or are replaced (DESIGN section 4, edit-aware matching).

Agents prune their own history in text: they leave messages out, empty old tool output, lose thinking blocks. A `Trace` is
what was computed for a session: its path, and its visible messages as token runs. `align` compares it with the messages
of a request and, where they differ, continues the trace's path by a Drop and by insertions, so that the KV after the
edits is kept. Comparison is by tokens; a hash only proposes. Pure: what is cached, and what is cheaper, others know.
"""

from __future__ import annotations

import difflib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from akashic_daemon.program.active import ActiveCache, active_cache
from akashic_daemon.program.path import Drop, Insert, Path, PlacedOp, Repos, Shift
from akashic_daemon.program.ranges import Range, Ranges, normal, subtract
from akashic_daemon.program.room import make_room


@dataclass(frozen=True, slots=True)
class Entry:
    """One visible message: its tokens in reading order, as ranges of trajectory indices."""

    owner: int
    ranges: tuple[Range, ...]
    tokens: array[int]

    def indices(self, start: int, end: int) -> list[Range]:
        """Return the trajectory ranges of its tokens start <= i < end."""
        out: list[Range] = []
        at = 0
        for first, last in self.ranges:
            low, high = max(start - at, 0), min(end - at, last - first)
            if low < high:
                out.append((first + low, first + high))
            at += last - first
        return out


@dataclass(frozen=True, slots=True)
class Trace:
    """What was computed last: `entries` are the visible messages, the last one open when an answer follows it."""

    path: Path
    entries: tuple[Entry, ...]
    open_tail: bool

    @property
    def tokens(self) -> array[int]:
        """The visible tokens in reading order."""
        out = array("i")
        for entry in self.entries:
            out.extend(entry.tokens)
        return out


@dataclass(frozen=True, slots=True)
class Edit:
    """One difference: message `old` of the trace (its owner) or None, message `new` of the request or None."""

    kind: str
    old: int | None
    new: int | None


@dataclass(frozen=True, slots=True)
class Aligned:
    """The trace's path, continued. `owners`: the request's message of each token, -1 for what it doesn't have.

    computed_tokens: insertions and what is appended. kept_tokens: of the trace, still visible.
    """

    path: Path
    owners: array[int]
    edits: tuple[Edit, ...]
    computed_tokens: int
    kept_tokens: int


SameMeaning = Callable[[int, int], str | None]
"""(owner in the trace, message of the request) -> why two different texts count as the same, or None."""


def entries_of(path: Path, owners: array[int], state: ActiveCache | None = None) -> tuple[Entry, ...]:
    """Return the visible tokens of a path as messages, in reading order; what nobody owns (-1) is left out."""
    state = active_cache(path) if state is None else state
    owner_of = np.frombuffer(owners, np.int32) if owners else np.empty(0, np.int32)
    found: list[tuple[int, list[Range]]] = []
    for span in state.spans:
        start, end = span.indices
        borders = [0, *(np.flatnonzero(np.diff(owner_of[start:end])) + 1).tolist(), end - start]
        for low, high in pairwise(borders):
            owner = int(owner_of[start + low])
            if found and found[-1][0] == owner:
                found[-1][1].append((start + low, start + high))
            else:
                found.append((owner, [(start + low, start + high)]))
    out = []
    for owner, ranges in found:
        tokens = array("i")
        for low, high in ranges:
            tokens.extend(path.tokens[low:high])
        if owner >= 0:
            out.append(Entry(owner, tuple(ranges), tokens))
    return tuple(out)


def align(
    trace: Trace,
    target: Sequence[Entry],
    *,
    same: SameMeaning | None = None,
    reserve_tokens: int = 0,
    position_limit: int | None = None,
    may_move: bool = True,
) -> Aligned | None:
    """Continue the trace's path so that exactly `target` is visible, its last entry being the open end of the prompt.

    position_limit: renumber first when the next position plus reserve_tokens would pass it. may_move: whether tokens may
    get other positions; None is returned when an edit needs that and they can't, or nothing of the trace stays.
    """
    return _Aligner(trace, target, same, reserve_tokens, position_limit, may_move).run()


class _Aligner:
    def __init__(
        self,
        trace: Trace,
        target: Sequence[Entry],
        same: SameMeaning | None,
        reserve_tokens: int,
        position_limit: int | None,
        may_move: bool,
    ) -> None:
        self._trace = trace
        self._target = target
        self._same = same
        self._reserve = reserve_tokens
        self._limit = position_limit
        self._may_move = may_move
        self._edits: list[Edit] = []
        self._kept: list[tuple[int, list[Range]]] = []
        """For each target entry met so far: (its number, ranges of kept trajectory indices, in reading order)."""
        self._inserts: list[tuple[int, int, array[int]]] = []
        """(number of kept ranges before it, owner, tokens)."""

    def run(self) -> Aligned | None:
        closed = self._trace.entries[:-1] if self._trace.open_tail else self._trace.entries
        pairs = match_entries([e.tokens for e in closed], [e.tokens for e in self._target[:-1]])
        pairs = self._with_tail(pairs)
        if not pairs:
            return None
        a = b = 0
        for old, new in pairs:
            self._gap(a, old, b, new)
            self._keep_whole(old, new)
            a, b = old + 1, new + 1
        for number, old_index in enumerate(range(a, len(self._trace.entries))):
            self._note_gone(old_index, b + number)
        return self._build(a, b)

    def _with_tail(self, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Pair the open answer with the message that begins with it."""
        entries = self._trace.entries
        if not self._trace.open_tail or (pairs and pairs[-1][0] == len(entries) - 1):
            return pairs
        tail = entries[-1].tokens
        after = pairs[-1][1] + 1 if pairs else 0
        for new in range(after, len(self._target)):
            tokens = self._target[new].tokens
            opening = self._target[-1].tokens
            if len(tail) > len(opening) and tokens[: len(tail)] == tail:
                return [*pairs, (len(entries) - 1, new)]
        return pairs

    def _keep_whole(self, old: int, new: int) -> None:
        entry, wanted = self._trace.entries[old], self._target[new]
        self._kept.append((new, list(entry.ranges)))
        if len(wanted.tokens) > len(entry.tokens):
            self._insert(wanted.owner, wanted.tokens[len(entry.tokens) :])

    def _insert(self, owner: int, tokens: array[int]) -> None:
        if tokens:
            self._inserts.append((len(self._kept), owner, tokens))

    def _gap(self, a: int, a_end: int, b: int, b_end: int) -> None:
        """Between two kept messages: pair what stands for each other, drop and insert the rest."""
        entries, target = self._trace.entries, self._target
        at = a
        for new in range(b, b_end):
            partner = self._partner(at, a_end, new, b_end - new)
            if partner is None:
                self._edits.append(Edit("inserted", None, target[new].owner))
                self._insert(target[new].owner, target[new].tokens)
                continue
            for gone in range(at, partner):
                self._edits.append(Edit("removed", entries[gone].owner, None))
            at = partner + 1
            self._replace(partner, new)
        for gone in range(at, a_end):
            self._edits.append(Edit("removed", entries[gone].owner, None))

    def _partner(self, at: int, a_end: int, new: int, left: int) -> int | None:
        """Return the old message that `new` replaces: the first that begins alike, if enough are left for the others."""
        if at >= a_end:
            return None
        tokens = self._target[new].tokens
        for old in range(at, a_end):
            if self._same is not None and self._same(self._trace.entries[old].owner, self._target[new].owner):
                return old
        for old in range(at, a_end):
            if _common_start(self._trace.entries[old].tokens, tokens) >= 2 and a_end - old >= min(left, a_end - at):
                return old
        return None

    def _replace(self, old: int, new: int) -> None:
        """Keep the beginning and end that two versions of a message share; replace what is between."""
        entry, wanted = self._trace.entries[old], self._target[new]
        reason = self._same(entry.owner, wanted.owner) if self._same is not None else None
        if reason is not None:
            self._edits.append(Edit(reason, entry.owner, wanted.owner))
            self._kept.append((new, list(entry.ranges)))
            return
        start = _common_start(entry.tokens, wanted.tokens)
        end = _common_end(entry.tokens[start:], wanted.tokens[start:])
        gone = len(entry.tokens) - end - start
        added = wanted.tokens[start : len(wanted.tokens) - end]
        self._edits.append(
            Edit("shortened" if not added else "replaced" if gone else "extended", entry.owner, wanted.owner)
        )
        if start:
            self._kept.append((new, entry.indices(0, start)))
        self._insert(wanted.owner, added)
        if end:
            self._kept.append((new, entry.indices(len(entry.tokens) - end, len(entry.tokens))))

    def _note_gone(self, old: int, new: int) -> None:
        """Tell of an old message behind all that stays; one of the request's new ones may stand in its place."""
        entries, target = self._trace.entries, self._target
        if self._trace.open_tail and old == len(entries) - 1:
            return
        if new < len(target) - 1 and _common_start(entries[old].tokens, target[new].tokens) >= 2:
            self._edits.append(Edit("replaced", entries[old].owner, target[new].owner))
        else:
            self._edits.append(Edit("removed", entries[old].owner, None))

    def _build(self, a: int, b: int) -> Aligned | None:
        trace, target = self._trace, self._target
        kept = normal(r for _, ranges in self._kept for r in ranges)
        length = kept[-1][1] if kept else 0
        state = active_cache(trace.path.prefix(length))
        length += state.inserting
        rest = array("i")
        rest_owners = array("i")
        for entry in target[b:]:
            rest.extend(entry.tokens)
            rest_owners.extend([entry.owner] * len(entry.tokens))
        length, grown = self._grow_into_tail(a, length, rest)
        base = trace.path.prefix(length)
        state = active_cache(base)
        owners = array("i", [-1]) * length
        for number, ranges in self._kept:
            for low, high in ranges:
                owners[low:high] = array("i", [target[number].owner]) * (high - low)
        owners[length - grown : length] = rest_owners[:grown]
        walk = _Walk(base, owners, state)
        keep = normal([*kept, (length - grown, length)])
        gone = subtract(state.indices, keep)
        if gone:
            walk.drop(gone)
        inserted = 0
        last = [ranges[-1][1] - 1 for _, ranges in self._kept]
        after: dict[int, int] = {}
        for number, owner, tokens in self._inserts:
            previous = after.get(number, last[number - 1] if number else None)
            if number == len(self._kept) and not grown:
                rest, rest_owners = tokens + rest, array("i", [owner]) * len(tokens) + rest_owners
                continue
            if not walk.insert(previous, owner, tokens, self._may_move):
                return None
            after[number] = len(walk.owners) - 1
            inserted += len(tokens)
        rest, rest_owners = rest[grown:], rest_owners[grown:]
        if self._limit is not None and walk.state.next_position + len(rest) + self._reserve > self._limit:
            if not self._may_move:
                return None
            walk.repos()
        walk.append(rest, rest_owners)
        return Aligned(
            walk.path(), walk.owners, tuple(self._edits), inserted + len(rest), walk.state.tokens - inserted - len(rest)
        )

    def _grow_into_tail(self, a: int, length: int, rest: array[int]) -> tuple[int, int]:
        """Go on along the trace as far as what follows it in the request is the same."""
        if a < len(self._trace.entries) and not any(n == len(self._kept) for n, _, _ in self._inserts):
            following = self._trace.entries[a]
            first, last = following.ranges[0]
            path = self._trace.path
            if first == length and not any(p.offset == length for p in path.ops):
                same = min(_common_start(following.tokens, rest), last - first, max(0, len(rest) - 1))
                return length + same, same
        return length, 0


class _Walk:
    """A path being continued, with owners and active cache."""

    def __init__(self, base: Path, owners: array[int], state: ActiveCache) -> None:
        self._tokens = base.tokens[:]
        self._ops = list(base.ops)
        self.owners = owners
        self.state = state

    def path(self) -> Path:
        return Path(self._tokens, tuple(self._ops))

    def _apply(self, op: Drop | Repos | Shift | Insert) -> None:
        self._ops.append(PlacedOp(len(self._tokens), op))
        self.state = self.state.apply(op)

    def drop(self, ranges: Ranges) -> None:
        self._apply(Drop(ranges))

    def repos(self) -> None:
        self._apply(Repos())

    def insert(self, previous: int | None, owner: int, tokens: array[int], may_move: bool) -> bool:
        """Insert behind the token with index `previous`. False when others must move for it and can't."""
        place = 0 if previous is None else _position(self.state, previous) + 1
        room = self.state.room_at(place)
        if room is not None and room < len(tokens):
            if not may_move:
                return False
            self._apply(make_room(self.state, place, len(tokens) - room))
            place = 0 if previous is None else _position(self.state, previous) + 1
        self._apply(Insert(place, len(tokens)))
        self._append(tokens, array("i", [owner]) * len(tokens))
        return True

    def append(self, tokens: array[int], owners: array[int]) -> None:
        self._append(tokens, owners)

    def _append(self, tokens: array[int], owners: array[int]) -> None:
        self._tokens.extend(tokens)
        self.owners.extend(owners)
        self.state = self.state.append(len(tokens))


def _position(state: ActiveCache, index: int) -> int:
    for span in state.spans:
        start, end = span.indices
        if start <= index < end:
            return span.position + index - start
    raise AssertionError(f"token {index} isn't visible")


def match_entries(a: Sequence[array[int]], b: Sequence[array[int]]) -> list[tuple[int, int]]:
    """Return ascending pairs (i, j) with a[i] == b[j]: common start and end, then anchors that occur once, then the gaps."""
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    pairs = [(i, i) for i in range(start)]
    left = [x.tobytes() for x in a[start : len(a) - end]]
    right = [x.tobytes() for x in b[start : len(b) - end]]
    anchors = _anchors(left, right)
    low_a = low_b = 0
    for i, j in [*anchors, (len(left), len(right))]:
        if low_a < i and low_b < j:
            matcher = difflib.SequenceMatcher(None, left[low_a:i], right[low_b:j], autojunk=False)
            for block in matcher.get_matching_blocks():
                pairs.extend((start + low_a + block.a + k, start + low_b + block.b + k) for k in range(block.size))
        if i < len(left) and j < len(right):
            pairs.append((start + i, start + j))
        low_a, low_b = i + 1, j + 1
    pairs.extend((len(a) - end + k, len(b) - end + k) for k in range(end))
    return pairs


def _anchors(left: list[bytes], right: list[bytes]) -> list[tuple[int, int]]:
    """Return the longest ascending run of pairs of what occurs once on each side (patience matching)."""
    seen_left, seen_right = Counter(left), Counter(right)
    where = {value: i for i, value in enumerate(left)}
    candidates = [
        (where[value], j) for j, value in enumerate(right) if seen_right[value] == 1 and seen_left.get(value) == 1
    ]
    tails: list[int] = []
    links: list[tuple[int, int, int]] = []
    at_tail: list[int] = []
    for i, j in candidates:
        place = bisect_left(tails, i)
        links.append((i, j, at_tail[place - 1] if place else -1))
        if place == len(tails):
            tails.append(i)
            at_tail.append(len(links) - 1)
        else:
            tails[place], at_tail[place] = i, len(links) - 1
    out: list[tuple[int, int]] = []
    at = at_tail[-1] if at_tail else -1
    while at >= 0:
        i, j, at = links[at]
        out.append((i, j))
    return out[::-1]


def _common_start(a: array[int], b: array[int]) -> int:
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    differing = np.flatnonzero(np.frombuffer(a[:limit], np.int32) != np.frombuffer(b[:limit], np.int32))
    return int(differing[0])


def _common_end(a: array[int], b: array[int]) -> int:
    limit = min(len(a), len(b))
    if limit == 0:
        return 0
    differing = np.flatnonzero(
        np.frombuffer(a[len(a) - limit :], np.int32) != np.frombuffer(b[len(b) - limit :], np.int32)
    )
    return limit if len(differing) == 0 else limit - 1 - int(differing[-1])
