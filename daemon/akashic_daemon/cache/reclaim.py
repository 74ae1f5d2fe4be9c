"""Reclamation: what goes when cells or sequence ids run short, and in which order (DESIGN section 4).

What no running sequence holds or waits for: first what operations dropped (keepers), then the least recently used leaves
from their ends. Nodes that something below still needs stay as holes.
"""

from __future__ import annotations

from collections.abc import Callable

from akashic_daemon.cache.node import Lineage, Node
from akashic_daemon.cache.tree import Tree
from akashic_daemon.errors import EngineError
from akashic_daemon.program.ranges import size, subtract
from akashic_daemon.types import SequenceId


class NoSequence(EngineError):
    """Every sequence id is running, or serves one that is."""


class Reclaimer:
    """Evicts from one tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._holdings = tree.holdings
        self.evicted_tokens = 0
        self.before_eviction: Callable[[], None] = lambda: None
        """Called when something is about to be evicted that may be copied out first; changes nothing here."""

    def make_room(self, cells: int) -> bool:
        """Evict what no running sequence holds or waits for until `cells` are free. False if it can't."""
        if self._holdings.free < cells:
            self.before_eviction()
        while self._holdings.free < cells:
            if any(self._evict_loose(keeper) for keeper in sorted(self.keepers(), key=self._last_used)):
                continue
            leaf = min(self._idle_leaves(), key=lambda n: n.last_used, default=None)
            if leaf is None:
                return False
            self._shorten(leaf, cells - self._holdings.free)
        return True

    def forget(self, node: Node, keep: Node) -> None:
        """Evict what stands at `node` and above it, up to `keep`, where another path branches off or something runs."""
        tree = self._tree
        while node is not keep and node is not tree.root and not node.children and not node.pins:
            if any(t in tree.runners for t in node.tips):
                return
            parent = node.parent
            assert parent is not None
            if node.tips:
                self._shorten(node, size(node.resident()))
            tree.prune(node)
            node = parent

    def evictable_cells(self) -> int:
        """Return how many cells could be freed without touching a running sequence or what one waits for."""
        total = 0
        for node in self._tree.nodes():
            if node.pins:
                continue
            loose = node.resident()
            for sequence, ranges in node.held.items():
                if sequence in self._tree.runners:
                    loose = subtract(loose, ranges)
            total += size(loose)
        return total

    def _spare(self) -> list[SequenceId]:
        """Idle sequences that could give up their ids: keepers if there are any."""
        keepers = [s for s in self.keepers() if not self.serves_a_pin(s)]
        return keepers or [s for s in self._tree.tip_of if s not in self._tree.runners and not self.serves_a_pin(s)]

    def retire(self, spare: list[SequenceId]) -> bool:
        """Free the id that was used the longest time ago. False when there is none."""
        idle = min(spare, key=self._last_used, default=None)
        if idle is not None:
            self.before_eviction()
            self._evict_all(idle)
        return idle is not None

    def retire_one(self) -> None:
        """Free an id, or raise NoSequence when every sequence runs or serves one that does."""
        if not self.retire(self._spare()):
            raise NoSequence(f"all {len(self._tree.tip_of)} sequences are running", hint="raise cache.max_sequences")

    def allocate(self) -> SequenceId:
        """Return a free id. Raises NoSequence."""
        if not self._tree.free:
            self.retire_one()
        return self._tree.free.pop()

    def allocate_beside(self, wanted: Lineage) -> SequenceId:
        """Return a free id, if need be from a sequence that holds nothing of the `wanted` path. Raises NoSequence."""
        if not self._tree.free and not self.make_way(wanted):
            self.retire_one()
        return self._tree.free.pop()

    def make_way(self, wanted: Lineage) -> bool:
        """Free an id without touching what holds anything of the `wanted` path. False if that can't be."""
        for waiting in wanted.nodes:
            waiting.pins += 1
        try:
            return self.retire(self._spare())
        finally:
            for waiting in wanted.nodes:
                waiting.pins -= 1

    def _last_used(self, sequence: SequenceId) -> int:
        return self._tree.tip_of[sequence].last_used

    def keepers(self) -> list[SequenceId]:
        """Idle tips that are no leaf's cache: what operations dropped, and what a runner ahead of them waits for."""
        return [
            s
            for s, n in self._tree.tip_of.items()
            if s not in self._tree.runners and (n.children or n.pins or any(t in self._tree.runners for t in n.tips))
        ]

    def serves_a_pin(self, sequence: SequenceId) -> bool:
        """Tell if it alone holds something that a runner ahead of it waits for."""
        return any(h.pins and self._holdings.unique(sequence, h) for h in self._holdings.homes(sequence))

    def _idle_leaves(self) -> list[Node]:
        return [
            n
            for n in self._tree.nodes()
            if not n.children and not n.pins and not any(t in self._tree.runners for t in n.tips)
        ]

    def _evict_loose(self, sequence: SequenceId) -> int:
        """Evict what an idle sequence alone holds and no runner waits for; returns how many cells that freed."""
        freed = 0
        for home in self._holdings.homes(sequence):
            if not home.pins:
                freed += self._holdings.let_go(sequence, home, self._holdings.unique(sequence, home))
        self.evicted_tokens += freed
        self._tree.settle(sequence)
        return freed

    def _evict_all(self, sequence: SequenceId) -> None:
        self.evicted_tokens += self._tree.remove_tip(sequence)

    def _shorten(self, leaf: Node, cells: int) -> None:
        """Take at least `cells` cells, or the whole node, off the end of an idle leaf."""
        resident = leaf.resident()
        if leaf.is_run and size(resident) > cells:
            first, end = leaf.indices
            keep = end - first
            for start, stop in reversed(resident):
                taken = min(cells, stop - max(start, first))
                keep = stop - taken - first
                cells -= taken
                if cells <= 0:
                    break
            tail = ((first + keep, end),)
            for sequence in list(leaf.held):
                self.evicted_tokens += self._holdings.let_go(sequence, leaf, tail)
            leaf.key = leaf.key[:keep]
            for sequence in list(leaf.tips):
                self._tree.settle(sequence)
            return
        parent = leaf.parent
        assert parent is not None
        assert leaf.tips, "a leaf at which nothing stands"
        for sequence in list(leaf.held):
            self.evicted_tokens += self._holdings.let_go(sequence, leaf, resident)
        for sequence in list(leaf.tips):
            self._tree.set_tip(sequence, parent)
            self._tree.settle(sequence)
