"""What is visible of a history, told by message: the running account behind compiling, selecting and policies.

It says what `ActiveCache` says, but finds a message's tokens and the room at a place without walking all spans, so a
program over a thousand messages takes milliseconds. A property test holds it to the naive twin.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

from akashic_daemon.program.layout import MessageTokens
from akashic_daemon.program.path import Drop, Insert, Op, Repos
from akashic_daemon.program.ranges import Range, Ranges, intersect, normal, size, subtract
from akashic_daemon.trajectory.message import Role

KINDS = ("messages", "system", "user", "assistant", "tool", "thinking", "memory")
"""What selectors and counts can name: all messages, those of a role, those whose reasoning is visible, what was recalled.

Recalled messages are no user's and no answer, so that a program does the same with memory as without it."""

_SCAFFOLD = -1


class Piece(NamedTuple):
    """`length` visible tokens: path indices from `first`, positions from `position`."""

    first: int
    length: int
    position: int


class Dropped(NamedTuple):
    """What a drop took: path ranges, how many tokens, and how many of those asked for were gone already."""

    ranges: Ranges
    tokens: int
    skipped: int


class Replaced(NamedTuple):
    """The operations of a replacement, how many tokens it took away, how many a Repos for room moved."""

    ops: tuple[Op, ...]
    dropped: int
    moved: int


class Ledger:
    """Grows message by message. Path indices count replacements too; layout indices don't."""

    def __init__(self, head_tokens: int = 0) -> None:
        self.entries: list[MessageTokens] = []
        self.next_index = 0
        self.next_position = 0
        self.visible_tokens = 0
        self.newest_user: int | None = None
        self.answers: list[int] = []
        self.visible: dict[str, list[int]] = {kind: [] for kind in KINDS}
        self._live: set[int] = set()
        self._pieces: dict[int, list[Piece]] = {}
        self._starts: list[int] = []
        self._shift: dict[int, int | None] = {}
        self._full: dict[int, int] = {}
        if head_tokens:
            self._pieces[_SCAFFOLD] = [self._append(head_tokens)]

    def copy(self) -> Ledger:
        """Return an account that goes on by itself."""
        twin = Ledger()
        twin.entries, twin.answers = self.entries[:], self.answers[:]
        twin.next_index, twin.next_position = self.next_index, self.next_position
        twin.visible_tokens, twin.newest_user = self.visible_tokens, self.newest_user
        twin.visible = {kind: found[:] for kind, found in self.visible.items()}
        twin._pieces = {message: pieces[:] for message, pieces in self._pieces.items()}
        twin._live = set(self._live)
        twin._starts, twin._shift, twin._full = self._starts[:], dict(self._shift), dict(self._full)
        return twin

    def append(self, entry: MessageTokens) -> None:
        """Append the next message; its ranges count from the first token of the layout."""
        index = entry.index
        self.entries.append(entry)
        if not entry.present:
            return
        count = 0
        if entry.ranges:
            start, end = entry.ranges[0]
            self._shift[index] = self.next_index - start
            count = end - start
            self._pieces[index] = [self._append(count)]
        self._full[index] = count
        if entry.role is Role.USER and not entry.recalled:
            self.newest_user = index
        elif entry.role is Role.ASSISTANT and not entry.recalled:
            self.answers.append(index)
        self._live.add(index)
        for kind in _kinds(entry):
            self.visible[kind].append(index)
        if entry.has_thinking:
            self.visible["thinking"].append(index)

    def _append(self, count: int) -> Piece:
        piece = Piece(self.next_index, count, self.next_position)
        self._starts.append(self.next_position)
        self.next_index += count
        self.next_position += count
        self.visible_tokens += count
        return piece

    def is_visible(self, message: int) -> bool:
        """Tell if anything of the message, or of the group that holds its tokens, can be attended to."""
        return message in self._live

    def tokens_of(self, message: int) -> int:
        """Return how many of the message's tokens are visible."""
        return sum(p.length for p in self._pieces.get(message, ()))

    def position_ranges(self, message: int) -> Ranges:
        """Return where the message's visible tokens stand."""
        return normal((p.position, p.position + p.length) for p in self._pieces.get(message, ()))

    def positions(self) -> dict[int, int]:
        """Return path index -> position of everything visible; for tests and pictures."""
        return {p.first + i: p.position + i for ps in self._pieces.values() for p in ps for i in range(p.length)}

    def tokens_after(self, message: int) -> int:
        """Return how many visible tokens stand behind the message's place: what editing its text would recompute."""
        kept = self.visible["messages"]
        return sum(self.tokens_of(m) for m in kept[bisect_left(kept, message + 1) :])

    def drop_messages(self, messages: Iterable[int]) -> Dropped:
        """Drop whole messages; those without tokens leave with their group's first."""
        ranges: list[Range] = []
        tokens = skipped = 0
        for message in messages:
            if message not in self._live:
                skipped += self._full.get(message, 0)
                continue
            pieces = self._pieces.pop(message, [])
            for piece in pieces:
                del self._starts[bisect_left(self._starts, piece.position)]
                ranges.append((piece.first, piece.first + piece.length))
            gone = sum(p.length for p in pieces)
            tokens += gone
            skipped += self._full.get(message, 0) - gone
            self._forget(message)
        self.visible_tokens -= tokens
        return Dropped(normal(ranges), tokens, skipped)

    def _forget(self, message: int) -> None:
        self._live.discard(message)
        for kind in (*_kinds(self.entries[message]), "thinking"):
            kept = self.visible[kind]
            at = bisect_left(kept, message)
            if at < len(kept) and kept[at] == message:
                del kept[at]

    def drop_tokens(self, ranges: Ranges, messages: Iterable[int]) -> Dropped:
        """Drop layout tokens; `messages` must include every message that owns one of them."""
        out: list[Range] = []
        asked = size(ranges)
        for message in messages:
            shift = self._shift.get(message)
            pieces = self._pieces.get(message)
            if shift is None or not pieces:
                continue
            mine = tuple((a + shift, b + shift) for a, b in intersect(ranges, self.entries[message].ranges))
            if mine:
                out.extend(self._cut(message, pieces, mine))
        taken = normal(out)
        self.visible_tokens -= size(taken)
        return Dropped(taken, size(taken), asked - size(taken))

    def _cut(self, message: int, pieces: list[Piece], mine: Ranges) -> list[Range]:
        taken: list[Range] = []
        kept: list[Piece] = []
        for piece in pieces:
            whole = ((piece.first, piece.first + piece.length),)
            taken.extend(intersect(whole, mine))
            del self._starts[bisect_left(self._starts, piece.position)]
            for start, end in subtract(whole, mine):
                part = Piece(start, end - start, piece.position + start - piece.first)
                insort(self._starts, part.position)
                kept.append(part)
        if kept:
            self._pieces[message] = kept
            self._thinking_left(message, kept)
        else:
            del self._pieces[message]
            first, end = self.entries[message].group
            for member in range(first, end):
                self._forget(member)
        return taken

    def _thinking_left(self, message: int, kept: list[Piece]) -> None:
        entry, shift = self.entries[message], self._shift[message]
        thinking = self.visible["thinking"]
        if entry.thinking and shift is not None and message in thinking:
            parts = tuple((a + shift, b + shift) for a, b in entry.thinking)
            if not intersect(normal((p.first, p.first + p.length) for p in kept), parts):
                thinking.remove(message)

    def repos(self, hole_at: int = 0, hole: int = 0) -> int | None:
        """Renumber what is visible; return how many tokens moved, or None when nothing at all would change."""
        order = sorted((p.position, message, i) for message, ps in self._pieces.items() for i, p in enumerate(ps))
        at, left, moved = 0, hole, 0
        placed: list[tuple[int, int, Piece]] = []
        for position, message, i in order:
            piece = self._pieces[message][i]
            if left and position >= hole_at:
                at, left = at + left, 0
            if position != at:
                moved += piece.length
                piece = piece._replace(position=at)
            placed.append((message, i, piece))
            at += piece.length
        if not moved and at + left == self.next_position:
            return None
        for message, i, piece in placed:
            self._pieces[message][i] = piece
        self._starts = [piece.position for _, _, piece in placed]
        self.next_position = at + left
        return moved

    def replace(self, message: int, count: int) -> Replaced:
        """Put `count` new tokens, the next of the path, at the place of a message that has visible tokens."""
        place = min(p.position for p in self._pieces[message])
        gone = self.drop_messages((message,))
        ops: list[Op] = [Drop(gone.ranges)]
        moved = 0
        after = bisect_left(self._starts, place)
        if after < len(self._starts) and count > self._starts[after] - place:
            before = sum(p.length for ps in self._pieces.values() for p in ps if p.position < place)
            changed = self.repos(place, count)
            if changed is not None:
                ops.append(Repos(place, count))
                moved = changed
            place = before
        if count:
            ops.append(Insert(place, count))
            self._insert(message, Piece(self.next_index, count, place))
        return Replaced(tuple(ops), gone.tokens, moved)

    def _insert(self, message: int, piece: Piece) -> None:
        self._pieces[message] = [piece]
        self._shift[message] = None
        self._full[message] = piece.length
        insort(self._starts, piece.position)
        self.next_index += piece.length
        self.next_position = max(self.next_position, piece.position + piece.length)
        self.visible_tokens += piece.length
        self._live.add(message)
        for kind in _kinds(self.entries[message]):
            insort(self.visible[kind], message)


def _kinds(entry: MessageTokens) -> tuple[str, ...]:
    if not entry.recalled:
        return "messages", entry.role
    # The word that stands for an answer to it goes with it, and isn't counted.
    return ("messages", "memory") if entry.role is Role.USER else ("messages",)
