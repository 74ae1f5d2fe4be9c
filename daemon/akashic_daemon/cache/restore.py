"""Bringing cells back that a lower tier has kept: which of them a key needs, where they go, and who holds them.

A restore is planned without changing anything: along the key, known nodes and *ghosts* of unknown ones are looked at with
what the tiers have counted as resident (`Stored`). Carrying it out makes the nodes and lets one idle sequence or more hold
the cells that are loaded: more than one where two copies would stand at one position, as around a Repos or a Replace.
The rest of the path, operations included, is walked afterwards as always; nothing here computes or rotates.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from akashic_daemon.cache.holdings import Holdings
from akashic_daemon.cache.keys import OpTable, key_length, marker_places, token_count
from akashic_daemon.cache.node import Lineage, Node
from akashic_daemon.cache.reclaim import Reclaimer
from akashic_daemon.cache.recovery import Needed, Recovery, plan_recovery
from akashic_daemon.cache.tree import Match, Runner, Tree
from akashic_daemon.program.active import ActiveCache, Span
from akashic_daemon.program.ranges import EMPTY, Range, Ranges, intersect, normal, size, subtract
from akashic_daemon.types import SequenceId


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a key would compute with and without the tiers, in tokens, and which cells they would have to give for it.

    wanted: trajectory indices, as computed (never moved copies: those are made anew from these). reach: how much of the
    key is known then, needed or not: what a later operation drops isn't computed only to be dropped.
    """

    wanted: Ranges
    computed: int
    computed_without: int
    reach: int = 0

    @property
    def loaded(self) -> int:
        """Tokens to load."""
        return size(self.wanted)


@dataclass(slots=True)
class _Keeper:
    """A sequence that holds what is being restored, and the positions that are taken in it."""

    sequence: SequenceId
    taken: Ranges = EMPTY


@dataclass(slots=True)
class Restoring:
    """A restore under way: `last` is the deepest node of the key that it needs."""

    last: Node
    keepers: list[_Keeper] = field(default_factory=list)
    loaded: int = 0


Load = Callable[[SequenceId, Sequence[Span]], None]
"""Adds the cells of spans to a sequence: of all, or, where it raises, of none."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A span to load, and what of it stays, by the node that it belongs to."""

    span: Span
    keep: list[tuple[Node, Ranges]]


class Restorer:
    """Restores into one tree."""

    def __init__(self, tree: Tree, reclaimer: Reclaimer, ops: OpTable) -> None:
        self._tree = tree
        self._holdings: Holdings = tree.holdings
        self._reclaimer = reclaimer
        self._ops = ops

    def plan(self, key: array[int], limit: int, stored: Ranges, known: int) -> RestorePlan:
        """Plan for the key's first `limit` entries.

        stored: the trajectory indices that the tiers have. known: so many of the key's tokens lie in blocks of theirs.
        """
        found = self._tree.match(key)
        without = self._missing(found, key, min(found.length, limit), EMPTY)[1]
        if not stored:
            return RestorePlan(EMPTY, without, without)
        reach = min(max(found.length, key_length(key, known)), limit)
        recovery, computed, nodes = self._missing(found, key, reach, stored)
        wanted: list[Range] = []
        for node in nodes:
            if node.is_run and node.key:
                present = node.resident()
                needed = recovery.needed.of(0, (node.indices,))
                wanted.extend(subtract(intersect(needed, stored), present))
        return RestorePlan(normal(wanted), computed, without, reach)

    def _missing(
        self, found: Match, key: array[int], length: int, stored: Ranges
    ) -> tuple[Recovery, int, Sequence[Node]]:
        nodes = self._with_ghosts(Lineage.of(found.node).nodes, found.length, key, length)
        plan = plan_recovery(nodes, length, key, self._ops, stored)
        rest = token_count(key[length:])
        return plan, plan.missing + rest, nodes

    def _with_ghosts(self, nodes: Sequence[Node], known: int, key: array[int], reach: int) -> list[Node]:
        """Return the lineage, its last node cut at the end of what is known, continued up to `reach` by unattached nodes."""
        out = list(nodes)
        last = out[-1]
        if reach <= known:
            return out
        if last.end > known:
            ghost = Node(last.parent, last.key[: known - last.depth], last.before, last.depth, None)
            ghost.held = {s: r for s, ranges in last.held.items() if (r := intersect(ranges, (ghost.indices,)))}
            out[-1] = last = ghost
        out.extend(self._steps(last, key, known, reach))
        return out

    def _steps(self, node: Node, key: array[int], at: int, end: int) -> Iterator[Node]:
        """Yield nodes for key[at:end] below `node`, attached to their parents only upwards."""
        markers = [place for place in marker_places(key) if at <= place < end]
        while at < end:
            if key[at] < 0:
                node = Node(node, array("i", [key[at]]), node.after, at, self._ops.op(key[at]))
                at += 1
            else:
                number = bisect_right(markers, at)
                stop = markers[number] if number < len(markers) else end
                state: ActiveCache = node.after
                if state.inserting:
                    stop = min(stop, at + state.inserting)
                node = Node(node, key[at:stop], state, at, None)
                at = stop
            yield node

    def begin(self, key: array[int], reach: int) -> Restoring:
        """Make the nodes of the key's first `reach` entries and a sequence that stands there. Raises NoSequence."""
        found = self._tree.match(key)
        sequence = self._reclaimer.allocate_beside(Lineage.of(found.node))
        found = self._tree.match(key)  # freeing an id may have taken a part
        node = found_end = self._tree.cut(found.node, min(found.length, reach))
        for child in self._steps(node, key, node.end, reach):
            assert child.parent is node
            node.children[child.key[0]] = child
            node = child
        restoring = Restoring(node)
        runner = self._tree.runners[self._stand(restoring, sequence).sequence]
        # What the plan counts as present stays until the restore ends: room for the rest is made elsewhere.
        for present in self._tree.nodes_between(self._tree.root, found_end):
            present.pins += 1
            runner.pinned.append(present)
        self._tree.prune(found.node)  # what lies behind may have lost its holder when an id was freed
        return restoring

    def _stand(self, restoring: Restoring, sequence: SequenceId) -> _Keeper:
        self._tree.tip_of[sequence] = restoring.last
        restoring.last.tips.add(sequence)
        self._tree.runners[sequence] = Runner(Needed(), 0, [])
        self._tree.touch(restoring.last)
        keeper = _Keeper(sequence)
        restoring.keepers.append(keeper)
        return keeper

    def load(self, restoring: Restoring, pieces: Sequence[tuple[Span, Ranges]], load: Load) -> bool:
        """Let `load` add the cells of spans to the sequence that it is given; keep of each what is wanted and lacks.

        The spans overlap nowhere, positions included. False when there is no room for them, which changes nothing. Raises
        what `load` raises, NoSequence.
        """
        lineage = Lineage.of(restoring.last)
        placed = [
            _Placed(span, keep) for span, wanted in pieces if (keep := _lacking(restoring, lineage, span, wanted))
        ]
        if not placed:
            return True
        if not self._reclaimer.make_room(sum(one.span.length for one in placed)):
            return False
        keeper = self._keeper_for(restoring, normal((one.span.position, one.span.end) for one in placed))
        load(keeper.sequence, [one.span for one in placed])
        for one in placed:
            self._keep(restoring, keeper, one)
        return True

    def _keep(self, restoring: Restoring, keeper: _Keeper, placed: _Placed) -> None:
        """Hold of a span that was loaded what is wanted, and let the rest go."""
        span = placed.span
        kept: list[Range] = []
        for home, ranges in placed.keep:
            self._holdings.hold(keeper.sequence, home, ranges)
            kept.extend(home.positions(ranges))
        for start, end in subtract(((span.position, span.end),), normal(kept)):
            self._holdings.drop_surplus(keeper.sequence, start, end)
        keeper.taken = normal((*keeper.taken, *kept))
        restoring.loaded += sum(size(ranges) for _, ranges in placed.keep)

    def _keeper_for(self, restoring: Restoring, positions: Ranges) -> _Keeper:
        for keeper in restoring.keepers:
            if not intersect(keeper.taken, positions):
                return keeper
        return self._stand(restoring, self._reclaimer.allocate())

    def end(self, restoring: Restoring) -> None:
        """Let what was loaded be an idle sequence's."""
        for keeper in restoring.keepers:
            runner = self._tree.runners.pop(keeper.sequence)
            self._tree.settle(keeper.sequence)
            self._tree.unpin(runner)
        restoring.keepers.clear()


def _lacking(restoring: Restoring, lineage: Lineage, span: Span, wanted: Ranges) -> list[tuple[Node, Ranges]]:
    """Return where a span's wanted tokens that aren't resident belong."""
    reached = span.cut(span.first, min(span.indices[1], restoring.last.indices[1]))
    keep = [(h, subtract(intersect((p.indices,), wanted), h.resident())) for h, p in lineage.pieces(reached)]
    return keep if any(ranges for _, ranges in keep) else []
