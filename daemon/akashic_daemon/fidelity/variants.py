"""What the model sees of a history in each way of shortening it, as a path. Pure: nothing is computed here.

`full` sees everything. `drop` is the policy tool-rolling-drop carried out on the cache: later KV has seen the dropped
text. `exact` prefills a text in which those messages never stood. `truncate` leaves out whole messages, the oldest first,
until no more is visible than under `drop`. A system message always stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from akashic_daemon.fidelity.turns import Turn
from akashic_daemon.program.layout import Layout
from akashic_daemon.program.message_ops import DropMessages
from akashic_daemon.program.path import Path
from akashic_daemon.program.policy import load
from akashic_daemon.program.weave import compile_ops
from akashic_daemon.trajectory.message import Role


class Kind(StrEnum):
    """Ways of shortening a history."""

    FULL = "full"
    DROP = "drop"
    EXACT = "exact"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class Variant:
    """A way of shortening; `keep` tool results stay (or as many tokens as that leaves), None keeps all."""

    kind: Kind
    keep: int | None = None

    def __str__(self) -> str:
        return self.kind.value if self.keep is None else f"{self.kind.value} keep {self.keep}"


FULL = Variant(Kind.FULL)


@dataclass(frozen=True, slots=True)
class Seen:
    """The path of one turn, its answer at the end, and how many of its tokens are visible there."""

    path: Path
    visible_tokens: int


def variants_of(keeps: tuple[int, ...]) -> list[Variant]:
    """Return every variant, the full one first, then by kind."""
    kinds = (Kind.DROP, Kind.EXACT, Kind.TRUNCATE)
    return [FULL, *(Variant(kind, keep) for kind in kinds for keep in keeps)]


def lay_out(turn: Turn, keep: int, window_tokens: int) -> dict[Variant, Seen]:
    """Return what each variant with this `keep` sees in a turn, and what the full one does."""
    layout = turn.layout
    compiled = compile_ops(layout, rules=load(f"tool-rolling-drop:keep={keep}").bound(window_tokens))
    gone = {m for op in compiled.ops if isinstance(op, DropMessages) for m in op.messages}
    return {
        FULL: Seen(Path(layout.tokens), len(layout.tokens)),
        Variant(Kind.DROP, keep): Seen(compiled.path, compiled.visible_tokens),
        Variant(Kind.EXACT, keep): _without(layout, gone),
        Variant(Kind.TRUNCATE, keep): _without(layout, oldest(layout, compiled.visible_tokens)),
    }


def oldest(layout: Layout, limit_tokens: int) -> set[int]:
    """Return the oldest messages without which at most `limit_tokens` are left; never a system message or the last."""
    gone: set[int] = set()
    left = len(layout.tokens)
    for message in layout.messages:
        first, end = message.group
        group = layout.messages[first:end]
        if left <= limit_tokens:
            break
        if message.index != first or end == len(layout.messages) or any(m.role is Role.SYSTEM for m in group):
            continue
        gone.update(range(first, end))
        left -= sum(m.tokens for m in group)
    return gone


def _without(layout: Layout, gone: set[int]) -> Seen:
    tokens = layout.without(gone).tokens if gone else layout.tokens
    return Seen(Path(tokens), len(tokens))
