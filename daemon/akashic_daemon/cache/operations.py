"""Carrying out operations on a running sequence: Drop, Repos, and the insertions that make a Replace.

What a sequence drops or moves stays with whoever else holds it (invariant 4). What nobody else holds goes to a *keeper*,
an idle sequence at the place before the operation: the next turn may want it, and it is the first to go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from akashic_daemon.cache.holdings import Cells
from akashic_daemon.cache.node import Lineage, Node
from akashic_daemon.cache.reclaim import Reclaimer
from akashic_daemon.cache.tree import Runner, Tree
from akashic_daemon.errors import EngineError
from akashic_daemon.program.active import Span
from akashic_daemon.program.path import Drop, Insert
from akashic_daemon.program.ranges import Range, intersect, normal, size, subtract
from akashic_daemon.types import SequenceId


class NoRoom(EngineError):
    """An operation needs `cells` free cells and nothing more can be evicted."""

    def __init__(self, cells: int) -> None:
        super().__init__(f"no room for {cells} more KV cells", hint="raise cache.kv_tokens")
        self.cells = cells


class Lost(EngineError):
    """What the rest of a path reads was let go of by another since it was planned."""


class Operations:
    """Operations on the sequences of one tree."""

    def __init__(self, tree: Tree, cells: Cells, reclaimer: Reclaimer, *, keep_dropped: bool) -> None:
        self._tree = tree
        self._holdings = tree.holdings
        self._cells = cells
        self._reclaimer = reclaimer
        self._keep_dropped = keep_dropped
        self.scratches = 0

    def drop(self, sequence: SequenceId, tip: Node, op: Drop) -> None:
        """Let a sequence at `tip` let go of what the operation names."""
        lineage = Lineage.of(tip)
        spans = [
            span.cut(start, end) for span in tip.after.spans for start, end in intersect((span.indices,), op.ranges)
        ]
        held = self._holdings.held_spans(sequence, lineage, spans)
        if self._keep_dropped and any(intersect(self._holdings.unique(sequence, h), (s.indices,)) for h, s in held):
            self._make_keeper(tip, lineage, [s for _, s in held])
        for home, span in held:
            self._holdings.let_go(sequence, home, (span.indices,))

    def _make_keeper(self, tip: Node, lineage: Lineage, spans: Iterable[Span]) -> None:
        """Let an idle sequence hold what is being dropped: the next turn may want it, and it goes first when room is short."""
        if not self._tree.free and not self._reclaimer.retire(
            [s for s in self._reclaimer.keepers() if not self._reclaimer.serves_a_pin(s)]
        ):
            return
        keeper = self._tree.free.pop()
        self._tree.tip_of[keeper] = tip
        tip.tips.add(keeper)
        self._holdings.gather(keeper, lineage, spans)

    def move(self, sequence: SequenceId, runner: Runner, tip: Node, marker: Node) -> None:
        """Carry out a Repos or Shift: moved tokens get private copies, rotated to their new positions.

        What only this sequence held of the old copies goes at once: they say nothing new, and idle cells slow llama.cpp. But
        tiers keep the old ones, from which any path makes its moved ones: they are copied out first.
        """
        lineage = Lineage.of(tip)
        version = marker.after.repos_count
        targets = [s for s in marker.after.spans if s.version == version]
        wanted = normal(s.indices for s in targets)
        if marker.end <= runner.known:
            wanted = runner.needed.of(version, wanted)
        copied = subtract(wanted, marker.resident())
        borders = tuple(sorted(t.indices for t in targets))
        parts = [s.cut(*r) for s in tip.after.spans for r in intersect((s.indices,), borders)]
        old = self._holdings.held_spans(sequence, lineage, parts)
        held = [(h, s.cut(*r)) for h, s in old for r in intersect((s.indices,), copied)]
        moving = sum(span.length for _, span in held)
        waited = [span for home, span in old if home.pins]  # by another, whose path goes on from the old copies
        freed = sum(
            size(intersect(self._holdings.unique(sequence, home), (span.indices,)))
            for home, span in old
            if not home.pins
        )
        if freed:
            self._reclaimer.before_eviction()
        if not self._reclaimer.make_room(max(0, moving - freed)):
            raise NoRoom(moving)
        saved = self._cells.save(sequence, [(s.position, s.end) for _, s in held]) if held else None
        if waited:
            self._make_keeper(tip, lineage, waited)
        for home, span in old:
            self._holdings.let_go(sequence, home, (span.indices,))
        if saved is not None:
            shift = _Places(targets)
            self._cells.load(saved, sequence, [shift.positions(span.indices) for _, span in held])
            self._holdings.hold(sequence, marker, normal(s.indices for _, s in held))
            runner.moved_tokens += moving
        self._holdings.gather(
            sequence,
            Lineage([*lineage.nodes, marker]),
            [t.cut(a, b) for t in targets for a, b in intersect((t.indices,), subtract(wanted, copied))],
        )

    def enter_insertion(self, sequence: SequenceId, runner: Runner, tip: Node) -> None:
        """Give an insertion a sequence of its own, which sees only what precedes it."""
        if runner.scratch is not None or not self.inserting(tip):
            return
        state = tip.after
        runner.scratch = self._reclaimer.allocate()
        self.scratches += 1
        for _, span in self._holdings.held_spans(sequence, Lineage.of(tip), state.seen()):
            self._cells.share(sequence, runner.scratch, span.position, span.end)

    def leave_insertion(self, sequence: SequenceId, runner: Runner) -> None:
        """Give the insertion's own sequence back once the insertion is complete."""
        if runner.scratch is not None and not self.inserting(self._tree.tip_of[sequence]):
            self.drop_scratch(runner)

    @staticmethod
    def inserting(tip: Node) -> bool:
        """Tell if the next token at this place belongs to an insertion."""
        if isinstance(tip.op, Insert):
            return tip.op.count > 0
        return bool(tip.is_run and tip.before.inserting and tip.room_to_grow())

    def drop_scratch(self, runner: Runner) -> None:
        """Give the insertion's own sequence back."""
        if runner.scratch is not None:
            self._cells.release(runner.scratch)
            self._tree.free.append(runner.scratch)
            self.scratches -= 1
            runner.scratch = None


class _Places:
    """Where tokens stand after they moved."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = sorted(spans)

    def positions(self, indices: Range) -> Range:
        """Return the new position range of a run of indices that moved together."""
        for span in self._spans:
            if span.first <= indices[0] and indices[1] <= span.first + span.length:
                part = span.cut(*indices)
                return part.position, part.end
        raise AssertionError("tokens that moved together are apart")
