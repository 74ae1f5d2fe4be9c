"""The radix index: what is computed over all sessions, with operation nodes, and how a request gets along its path.

Nodes are runs of tokens and cache operations (`node`); a *tip* is a sequence that stands at the end of a node and holds the
active cache there, holes excepted. A running sequence walks its key: present cells are shared, operations are carried
out, missing cells that a later token reads are computed, others are left as holes (`recovery`). An idle tip below which
nothing goes on is a finished request's cache; an idle tip elsewhere is a *keeper* of cells that later operations dropped.
Reclamation (`make_room`) lets keepers go first, then the least recently used leaves from their ends (DESIGN section 4).

The index decides; the `Cells` it is given carry it out. It knows nothing of text, sessions or time, and no engine.
It keeps invariant 2: a sequence only ever receives cells whose tokens and operation history were compared with the asked
ones. And invariant 4: what one sequence drops or moves stays with whoever else holds it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from akashic_daemon.cache.compaction import compact
from akashic_daemon.cache.holdings import Cells, Holdings, Watched
from akashic_daemon.cache.keys import OpTable, marker_places, token_count
from akashic_daemon.cache.node import Lineage, Node
from akashic_daemon.cache.operations import Lost, NoRoom, Operations
from akashic_daemon.cache.reclaim import NoSequence, Reclaimer
from akashic_daemon.cache.recovery import Recovery, plan_recovery
from akashic_daemon.cache.restore import Restorer
from akashic_daemon.cache.tree import Match, Runner, Tree, common_length
from akashic_daemon.program.path import Drop, Move
from akashic_daemon.program.ranges import EMPTY, Ranges, intersect, normal, subtract
from akashic_daemon.types import SequenceId

__all__ = ["Cells", "Lost", "Match", "NoRoom", "NoSequence", "RadixIndex", "Work", "common_length"]


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens to compute next: key[start:end] in `sequence`, from `position` on."""

    sequence: SequenceId
    start: int
    end: int
    position: int


class RadixIndex:
    """See the module's text. `cells_total` and `sequences_total` are the engine's limits; `ops` of keys made before."""

    def __init__(
        self,
        cells: Cells,
        *,
        cells_total: int,
        sequences_total: int,
        keep_dropped: bool = True,
        ops: OpTable | None = None,
    ) -> None:
        self._cells = cells = Watched(cells)
        self._holdings = Holdings(cells, cells_total)
        self._tree = Tree(self._holdings, sequences_total)
        self._reclaimer = Reclaimer(self._tree)
        self._operations = Operations(self._tree, cells, self._reclaimer, keep_dropped=keep_dropped)
        self.ops = ops or OpTable()
        self.sequences_total = sequences_total
        self.restorer = Restorer(self._tree, self._reclaimer, self.ops)
        """Brings back what a lower tier has kept."""

    # -- what it knows -----------------------------------------------------------------------------------------

    @property
    def failed(self) -> Exception | None:
        """Why nothing here may be believed any more: the engine failed in the middle of sharing or releasing cells."""
        return self._cells.failed

    @property
    def before_eviction(self) -> Callable[[], None]:
        """Called when something is about to be evicted that may be copied out first; it may change nothing here."""
        return self._reclaimer.before_eviction

    @before_eviction.setter
    def before_eviction(self, call: Callable[[], None]) -> None:
        self._reclaimer.before_eviction = call

    @property
    def cells_total(self) -> int:
        """The engine's cells."""
        return self._holdings.total

    @property
    def cells_used(self) -> int:
        """Cells that any sequence holds."""
        return self._holdings.used

    @property
    def cells_free(self) -> int:
        """Cells that nothing holds."""
        return self._holdings.free

    @property
    def scratches(self) -> int:
        """Sequences lent to insertions."""
        return self._operations.scratches

    @property
    def sequences_used(self) -> int:
        """Sequences that stand somewhere."""
        return len(self._tree.tip_of) + self._operations.scratches

    @property
    def running(self) -> frozenset[SequenceId]:
        """The sequences of requests that run."""
        return frozenset(self._tree.runners)

    @property
    def evicted_tokens(self) -> int:
        """Cells evicted so far."""
        return self._reclaimer.evicted_tokens

    def match(self, key: array[int]) -> Match:
        """Return the longest known prefix of `key`, holes included. Changes nothing."""
        return self._tree.match(key)

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the root."""
        return self._tree.nodes()

    def preview(self, key: array[int], limit: int) -> Recovery:
        """Tell what `start` would find, without changing anything."""
        return self._plan(self.match(key), key, limit)

    def _plan(self, found: Match, key: array[int], limit: int) -> Recovery:
        return plan_recovery(Lineage.of(found.node).nodes, min(found.length, limit), key, self.ops)

    def missing_tokens(self, key: array[int]) -> int:
        """Return how many tokens a request with this key would compute now."""
        plan = self.preview(key, len(key) - 1)
        return plan.missing + token_count(key[plan.matched :])

    def moved_tokens(self, sequence: SequenceId) -> int:
        """Return how many cells were rotated for this running sequence."""
        return self._tree.runners[sequence].moved_tokens

    def next_position(self, sequence: SequenceId) -> int:
        """Return where the sequence's next token stands."""
        return self._tree.tip_of[sequence].next_position

    def next_index(self, sequence: SequenceId) -> int:
        """Return the trajectory index of the sequence's next token."""
        tip = self._tree.tip_of[sequence]
        return tip.indices[1] if tip.is_run else tip.after.next_index

    def holder(self, key: array[int], first: int, count: int) -> SequenceId | None:
        """Return a sequence that holds the KV, as computed, of `count` tokens from index `first` at the end of a path."""
        found = self._tree.match(key)
        if found.length < len(key):
            return None
        wanted: Ranges = ((first, first + count),)
        holders: set[SequenceId] | None = None
        node: Node | None = found.node
        while node is not None and node.indices[1] > first:
            part = intersect(wanted, (node.indices,)) if node.is_run else EMPTY
            if part:
                here = {s for s, ranges in node.held.items() if not subtract(part, ranges)}
                holders = here if holders is None else holders & here
            node = node.parent
        return min(holders) if holders else None

    @contextmanager
    def holding(self, key: array[int], first: int, count: int) -> Iterator[SequenceId | None]:
        """Lend a sequence that holds these tokens' KV, as computed; None when some of it is gone or nothing can be lent.

        That is a holder, or an unused sequence to which several holders give it, as when a Drop took a part.
        """
        sequence = self.holder(key, first, count)
        parts = self._parts(key, first, count) if sequence is None and self._tree.free else None
        if parts is None:
            yield sequence
            return
        lent = self._tree.free[-1]
        try:
            for holder, start, end in parts:
                self._cells.share(holder, lent, start, end)
            yield lent
        finally:
            self._cells.release(lent)

    def _parts(self, key: array[int], first: int, count: int) -> list[tuple[SequenceId, int, int]] | None:
        """Return who holds which positions of these tokens' KV; None when some isn't held."""
        found = self._tree.match(key)
        wanted: Ranges = ((first, first + count),) if found.length == len(key) else EMPTY
        parts: list[tuple[SequenceId, int, int]] = []
        node: Node | None = found.node
        while node is not None and wanted:
            for holder, ranges in node.held.items() if node.is_run else ():
                here = intersect(wanted, ranges)
                parts.extend((holder, start, end) for start, end in node.positions(here))
                wanted = subtract(wanted, here)
            node = node.parent
        return parts if parts and not wanted else None

    def idle(self) -> list[tuple[SequenceId, Node]]:
        """Return the sequences at which nothing runs and where they stand, least recently used first."""
        idle = [(s, n) for s, n in self._tree.tip_of.items() if s not in self._tree.runners]
        return sorted(idle, key=lambda item: item[1].last_used)

    def idle_homes(self, sequence: SequenceId) -> list[tuple[Node, Ranges]]:
        """Return what an idle sequence alone holds; empty when a runner waits for any of it."""
        if self._reclaimer.serves_a_pin(sequence):
            return []
        homes = [(home, self._holdings.unique(sequence, home)) for home in self._holdings.homes(sequence)]
        return [(home, ranges) for home, ranges in homes if ranges]

    def park(self, sequence: SequenceId) -> int:
        """Let an idle sequence go; returns how many cells are free now."""
        return self._tree.remove_tip(sequence)

    # -- a request's life --------------------------------------------------------------------------------------

    def start(self, key: array[int], limit: int) -> tuple[SequenceId, int]:
        """Begin a running sequence with what is computed of `key`, at most `limit` entries of it.

        Returns the sequence and the key length that it stands at; `advance` goes on from there. Raises NoSequence when
        none can be freed.
        """
        while True:
            found = self.match(key)
            plan = self._plan(found, key, limit)
            node = self._tree.cut(found.node, plan.start)
            sequence = self._take_over(node)
            if sequence is None:
                sequence = self._new_sequence(node, Lineage.of(found.node))
            if sequence is not None:
                break
            self._reclaimer.retire_one()  # it held something of this very path, so look again
        runner = Runner(plan.needed, plan.matched, marker_places(key))
        self._tree.runners[sequence] = runner
        last = self._tree.cut(found.node, plan.matched)
        for ahead in self._tree.nodes_between(node, last):
            ahead.pins += 1
            runner.pinned.append(ahead)
        self._tree.prune(found.node)  # what lies behind `last` may have lost its holder when an id was freed
        self._tree.arrive(sequence, node)
        return sequence, plan.start

    def advance(self, sequence: SequenceId, key: array[int], limit: int) -> Work | None:
        """Go along `key` as far as nothing must be computed; return what must be, None at the key's end.

        Takes over what others have computed meanwhile. Entries from `limit` on are computed even when present.
        Raises NoRoom when an operation needs cells that can't be had, NoSequence when an insertion has none to stand in;
        the sequence then stands before it. Raises Lost when another let go of what the rest reads: start it again.
        """
        runner = self._tree.runners[sequence]
        while True:
            tip = self._tree.tip_of[sequence]
            at = tip.end
            if at >= len(key):
                return None
            if key[at] < 0:
                self._operate(sequence, runner, key[at])
                continue
            end = _next(runner.markers, at, len(key))
            after = tip.after if not tip.is_run or tip.before.inserting else None
            if after is not None and after.inserting:
                end = min(end, at + after.inserting)
            work_end = self._pass_present(sequence, runner, key, at, end, limit)
            if work_end is not None:
                self._check_all_is_there(sequence)
                # Only what is computed needs a sequence of the insertion's own; what is present goes without.
                self._operations.enter_insertion(sequence, runner, self._tree.tip_of[sequence])
                return Work(runner.scratch if runner.scratch is not None else sequence, at, work_end, tip.next_position)

    def _check_all_is_there(self, sequence: SequenceId) -> None:
        """Raise Lost when a sequence lacks anything that its next token sees: what it computes would be another's KV."""
        tip = self._tree.tip_of[sequence]
        if not self._holdings.holds_all(sequence, Lineage.of(tip), tip.after.seen()):
            raise Lost("cells that the rest of the path reads are gone", hint="begin again: it is planned anew")

    def extend(self, sequence: SequenceId, tokens: Sequence[int]) -> None:
        """Record that the tokens of a `Work` (or a first part of them) are computed."""
        runner = self._tree.runners[sequence]
        node = self._tree.tip_of[sequence]
        if runner.scratch is not None:
            start = node.next_position
            self._cells.share(runner.scratch, sequence, start, start + len(tokens))
        if self._may_grow(node, sequence):
            node.key.extend(tokens)
            self._holdings.grow(sequence, node, len(tokens))
            self._tree.touch(node)
        else:
            run = array("i", tokens)
            while run:
                child = node.children.get(run[0])
                if child is None:
                    node, run = self._add_run(node, run, sequence), array("i")
                    break
                same = common_length(child.key, run)
                if same < len(child.key):
                    child = self._tree.split(child, same)
                self._keep_older_twin(sequence, runner, child)
                node, run = child, run[same:]
            self._tree.arrive(sequence, node)
        self._operations.leave_insertion(sequence, runner)

    def finish(self, sequence: SequenceId) -> None:
        """End a running sequence; what it computed stays until it is evicted."""
        runner = self._tree.runners.pop(sequence)
        self._operations.drop_scratch(runner)
        self._tree.unpin(runner)
        self._tree.settle(sequence)

    def make_room(self, cells: int) -> bool:
        """Evict what no running sequence holds or waits for until `cells` are free. False if it can't."""
        return self._reclaimer.make_room(cells)

    def forget(self, key: array[int], others: Iterable[array[int]] = ()) -> None:
        """Evict what only a key's path holds, its token ids included; what runs, or is a start of `others`, stays."""
        kept = max((common_length(key, other) for other in others), default=0)
        node = self._tree.match(key).node
        if node.depth < kept < node.end and node.is_run:
            self._tree.cut(node, kept)
        keep = self._tree.match(key[:kept]).node
        self._reclaimer.forget(node, keep)

    def evictable_cells(self) -> int:
        """Return how many cells could be freed without touching a running sequence or what one waits for."""
        return self._reclaimer.evictable_cells()

    def compact(self) -> int:
        """Close the holes in the engine's cache; returns how many cells moved, 0 while an insertion runs.

        Raises what the engine raises; the cache must be emptied then.
        """
        if self._operations.scratches:
            return 0
        return compact(self._holdings, [self._tree.root, *self.nodes()], self._cells)

    def clear(self) -> None:
        """Forget everything; nothing may be running."""
        assert not self._tree.runners
        for sequence in list(self._tree.tip_of):
            self._holdings.let_go_all(sequence)
            self._tree.tip_of.pop(sequence)
            self._tree.free.append(sequence)
        self._tree.root.children.clear()
        self._tree.root.tips.clear()

    def check(self) -> None:
        """Assert that the index is consistent; for tests."""
        for node in self._tree.nodes():
            assert node.key, "an empty node"
            assert node.parent is not None
            assert node.parent.end == node.depth
            assert node.parent.children[node.key[0]] is node
            assert node.before == node.parent.after, "a node begins where its parent ends"
            assert node.children or node.tips or node.pins, "a leaf at which nothing stands"
            assert node.is_run or len(node.key) == 1
        self._holdings.check([self._tree.root, *self._tree.nodes()])
        for sequence, node in self._tree.tip_of.items():
            assert sequence in node.tips
        waiting = sum(len(r.pinned) for r in self._tree.runners.values())
        assert waiting == sum(n.pins for n in self._tree.nodes()), "pins without a runner"
        scratches = sum(r.scratch is not None for r in self._tree.runners.values())
        assert len(self._tree.tip_of) + len(self._tree.free) + scratches == self.sequences_total

    def _operate(self, sequence: SequenceId, runner: Runner, marker: int) -> None:
        tip = self._tree.tip_of[sequence]
        op = self.ops.op(marker)
        child = tip.children.get(marker)
        node = child or Node(tip, array("i", [marker]), tip.after, tip.end, op)
        if isinstance(op, Drop):
            self._operations.drop(sequence, tip, op)
        elif isinstance(op, Move):
            self._operations.move(sequence, runner, tip, node)
        if child is None:
            tip.children[marker] = node
        self._tree.arrive(sequence, node)

    # -- walking -----------------------------------------------------------------------------------------------

    def _pass_present(
        self, sequence: SequenceId, runner: Runner, key: array[int], at: int, end: int, limit: int
    ) -> int | None:
        """Pass what is present or not needed of the run key[at:end]; or return where the piece to compute ends."""
        tip = self._tree.tip_of[sequence]
        child = tip.children.get(key[at])
        if child is None or at >= limit:
            return end
        same = common_length(child.key, key[at : min(end, limit)])
        first = child.before.next_index
        resident = child.resident()
        wanted: Ranges = ((first, first + same),)
        if at < runner.known:
            known = min(same, runner.known - at)
            wanted = normal((*runner.needed.of(0, ((first, first + known),)), (first + known, first + same)))
        missing = subtract(wanted, resident)
        go = missing[0][0] - first if missing else same
        if go == 0:
            reach = missing[0][1] - first
            return at + reach if reach < same or (same == len(child.key) and child.children) else end
        node = self._tree.split(child, go) if go < len(child.key) else child
        present = intersect(intersect(wanted, resident), (node.indices,))
        spans = [s.cut(a, b) for s in node.cells() for a, b in intersect((s.indices,), present)]
        lineage = Lineage.of(node)
        self._holdings.gather(sequence, lineage, spans)
        if runner.scratch is not None:
            for span in spans:
                self._cells.share(sequence, runner.scratch, span.position, span.end)
        self._tree.arrive(sequence, node)
        self._operations.leave_insertion(sequence, runner)
        return None

    def _keep_older_twin(self, sequence: SequenceId, runner: Runner, node: Node) -> None:
        """`sequence` computed a run that may be in the tree: keep older cells, let go of younger ones, fill holes."""
        present = node.resident()
        for span in node.cells():
            for start, end in intersect((span.indices,), present):
                part = span.cut(start, end)
                self._cells.release(sequence, part.position, part.end)
                if runner.scratch is not None:
                    self._cells.release(runner.scratch, part.position, part.end)
        self._holdings.hold(sequence, node, subtract((node.indices,), present))
        if present:
            mine = intersect(node.held.get(sequence, EMPTY), present)
            if mine:
                raise AssertionError("a sequence computed what it holds")
            self._holdings.gather(
                sequence,
                Lineage.of(node),
                [s.cut(a, b) for s in node.cells() for a, b in intersect((s.indices,), present)],
            )
            if runner.scratch is not None:
                for span in node.cells():
                    for start, end in intersect((span.indices,), present):
                        part = span.cut(start, end)
                        self._cells.share(sequence, runner.scratch, part.position, part.end)

    def _may_grow(self, node: Node, sequence: SequenceId) -> bool:
        """Tell if its new tokens may join a run: not one that somebody waits for, who may go another way from its end."""
        if node is self._tree.root or not node.is_run or node.children or node.pins or node.tips != {sequence}:
            return False
        room = node.room_to_grow()
        return room is None or room > 0

    def _add_run(self, node: Node, run: array[int], sequence: SequenceId) -> Node:
        child = Node(node, run, node.after, node.end, None)
        node.children[run[0]] = child
        self._holdings.grow(sequence, child, len(run))
        return child

    def _take_over(self, node: Node) -> SequenceId | None:
        """Let an idle tip that holds exactly what is wanted run again: then nothing needs to be shared."""
        state = node.after
        lineage = Lineage.of(node)
        for sequence in node.tips:
            if sequence in self._tree.runners or self._holdings.count(sequence) != state.tokens:
                continue
            if self._holdings.holds_all(sequence, lineage, state.spans):
                return sequence
        return None

    def _new_sequence(self, node: Node, wanted: Lineage) -> SequenceId | None:
        """Return a new sequence at `node`; None when only a sequence that serves the `wanted` path could make way."""
        if not self._tree.free and not self._reclaimer.make_way(wanted):
            return None
        sequence = self._tree.free.pop()
        self._tree.tip_of[sequence] = node
        node.tips.add(sequence)
        self._holdings.gather(sequence, Lineage.of(node), node.after.spans)
        return sequence


def _next(places: list[int], at: int, end: int) -> int:
    number = bisect_right(places, at)
    return places[number] if number < len(places) else end
