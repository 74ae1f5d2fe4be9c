"""A trajectory's tokens with the cache operations in force, each at its place: the *path* that a request computes along.

This is the low level: token indices, not messages. `message_ops` compiles what people ask for to it, `active` says what
each token sees, `cache.index` finds how much of a path is computed. Sources: PAPERS section 3 (AKV: Append, Drop, Repos);
Insert and Shift are ours and carry Replace.

Semantics. Tokens have trajectory indices 0..n-1 in the order in which they were appended. An operation at *offset* k
takes effect after token k-1 was appended and before token k is. Appending gives a token the next position and lets it
attend to everything visible then.

- `Drop(ranges)`: the tokens with these indices (all < k) stop being visible. No position changes, the next one neither.
- `Repos(hole_at, hole)`: visible tokens get positions 0, 1, … in order of their positions; the next position follows.
  With `hole`, that many positions are left free before the tokens whose old position is at least `hole_at`.
- `Shift(start, end, by)`: visible tokens at positions start <= p < end move by `by`, past no other. The next position stays,
  unless one of them comes to stand there or later: then it follows that.
- `Insert(position, count)`: the next `count` tokens stand at position, position + 1, … and attend only to what is
  visible *before* each of them. The next position of ordinary tokens is what it was, or the insertion's end if later.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from akashic_daemon.errors import BadRequest
from akashic_daemon.program.ranges import Ranges, normal

MAX_OPS = 4096
"""More operations than this in one program are refused."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Tokens `ranges` (trajectory indices) stop being visible."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Repos:
    """Visible tokens are renumbered from 0; `hole` free positions before those whose old position is >= `hole_at`."""

    hole_at: int = 0
    hole: int = 0


@dataclass(frozen=True, slots=True)
class Shift:
    """Visible tokens at positions start <= p < end move by `by`; what they move over must be free."""

    start: int
    end: int
    by: int


@dataclass(frozen=True, slots=True)
class Insert:
    """The next `count` tokens stand at `position` on and see only what precedes them."""

    position: int
    count: int


Move = Repos | Shift
"""Operations that give tokens other positions, and so make copies of their KV."""

Op = Drop | Repos | Shift | Insert


@dataclass(frozen=True, slots=True)
class PlacedOp:
    """An operation and the number of tokens that were appended before it."""

    offset: int
    op: Op


@dataclass(frozen=True, slots=True)
class Path:
    """Tokens and the operations in force, in order; operations at one offset apply in the order given."""

    tokens: array[int]
    ops: tuple[PlacedOp, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def steps(self) -> Iterator[array[int] | Op]:
        """Yield runs of tokens and operations in the order in which they take effect."""
        at = 0
        for placed in self.ops:
            if placed.offset > at:
                yield self.tokens[at : placed.offset]
                at = placed.offset
            yield placed.op
        if at < len(self.tokens):
            yield self.tokens[at:]

    def then(self, tokens: Sequence[int], ops: Iterable[Op] = ()) -> Path:
        """Return the path with `ops` at its end and `tokens` appended after them."""
        placed = tuple(PlacedOp(len(self.tokens), op) for op in ops)
        return Path(self.tokens + array("i", tokens), self.ops + placed)

    def prefix(self, length: int) -> Path:
        """Return the first `length` tokens with the operations that took effect before them."""
        return Path(self.tokens[:length], tuple(p for p in self.ops if p.offset < length))

    def digest(self) -> str:
        """Return a tagged digest of tokens and operations."""
        state = hashlib.blake2b(digest_size=16)
        state.update(self.tokens.tobytes())
        state.update(json.dumps([op_to_json(p) for p in self.ops], separators=(",", ":")).encode())
        return "path1:" + state.hexdigest()


def op_to_json(placed: PlacedOp) -> dict[str, Any]:
    """Return an operation for storage; `op_from_json` is the inverse."""
    op = placed.op
    if isinstance(op, Drop):
        return {"op": "drop", "at": placed.offset, "ranges": [list(r) for r in op.ranges]}
    if isinstance(op, Repos):
        return {"op": "repos", "at": placed.offset, "hole_at": op.hole_at, "hole": op.hole}
    if isinstance(op, Shift):
        return {"op": "shift", "at": placed.offset, "start": op.start, "end": op.end, "by": op.by}
    return {"op": "insert", "at": placed.offset, "position": op.position, "count": op.count}


def op_from_json(data: Mapping[str, Any]) -> PlacedOp:
    """Read what `op_to_json` wrote. Raises BadRequest on anything else."""
    try:
        at = int(data["at"])
        if data["op"] == "drop":
            return PlacedOp(at, Drop(normal((int(a), int(b)) for a, b in data["ranges"])))
        if data["op"] == "repos":
            return PlacedOp(at, Repos(int(data["hole_at"]), int(data["hole"])))
        if data["op"] == "shift":
            return PlacedOp(at, Shift(int(data["start"]), int(data["end"]), int(data["by"])))
        if data["op"] == "insert":
            return PlacedOp(at, Insert(int(data["position"]), int(data["count"])))
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"reading a stored cache operation: {error!r} in {dict(data)}") from error
    raise BadRequest(f"reading a stored cache operation: there is no operation {data['op']!r}")


@dataclass(slots=True)
class PathBuilder:
    """Collects a path step by step."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    ops: list[PlacedOp] = field(default_factory=list)

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        self.tokens.extend(tokens)

    def apply(self, op: Op) -> None:
        """Let an operation take effect here."""
        self.ops.append(PlacedOp(len(self.tokens), op))

    def build(self) -> Path:
        """Return the path; the builder may go on."""
        return Path(self.tokens[:], tuple(self.ops))
