"""The radix index: which token runs are computed, over all sessions, and which sequences hold their cells.

Each node is a run of tokens at fixed positions below its parent's. A *tip* is a sequence whose cells are exactly the
path from the root to its node; every leaf has at least one tip, so every node's cells are held. The number of cells in
use is the sum of all runs: nothing is stored twice.

The index decides; the `Cells` it is given carry it out. It knows nothing of text, sessions or time, and no engine.
It keeps invariant 2: a sequence only ever receives cells whose tokens were compared with the asked ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from akashic_daemon.errors import EngineError
from akashic_daemon.types import SequenceId


class Cells(Protocol):
    """What the index needs of an engine."""

    def share(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        """Let `target` hold the cells of `source` at start <= p < end too."""

    def release(self, sequence: SequenceId, start: int = 0, end: int = -1) -> None:
        """Let `sequence` let go of start <= p < end (-1: to the end)."""


class Node:
    """A run of tokens. `start` is the position of its first token; `last_used` orders eviction."""

    __slots__ = ("children", "last_used", "parent", "start", "tips", "tokens")

    def __init__(self, parent: Node | None, tokens: array[int], start: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.start = start
        self.children: dict[int, Node] = {}
        self.tips: set[SequenceId] = set()
        self.last_used = 0

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Match:
    """The longest computed prefix of some tokens: `length` tokens, ending inside or at the end of `node`."""

    length: int
    node: Node


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading tokens are equal."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class RadixIndex:
    """See the module's text. `cells_total` and `sequences_total` are the engine's limits."""

    def __init__(self, cells: Cells, *, cells_total: int, sequences_total: int) -> None:
        self._cells = cells
        self._root = Node(None, array("i"), 0)
        self._tip_of: dict[SequenceId, Node] = {}
        self._running: set[SequenceId] = set()
        self._free = [SequenceId(i) for i in reversed(range(sequences_total))]
        self._tick = 0
        self.cells_total = cells_total
        self.sequences_total = sequences_total
        self.cells_used = 0
        self.evicted_tokens = 0

    @property
    def cells_free(self) -> int:
        """Cells that nothing holds."""
        return self.cells_total - self.cells_used

    @property
    def sequences_used(self) -> int:
        """Sequences that hold cells."""
        return len(self._tip_of)

    def match(self, tokens: array[int]) -> Match:
        """Return the longest computed prefix of `tokens`. Changes nothing."""
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                break
            same = common_length(child.tokens, tokens[at : at + len(child.tokens)])
            at += same
            node = child
            if same < len(child.tokens):
                break
        return Match(at, node)

    def start(self, tokens: array[int], limit: int) -> tuple[SequenceId, int]:
        """Begin a running sequence that holds the longest computed prefix of `tokens`, at most `limit` of it.

        Returns the sequence and the prefix's length. Raises EngineError when no sequence can be freed.
        """
        if not self._free:
            self._retire_one()
        match = self.match(tokens)
        length = min(match.length, limit)
        sequence = self._free.pop()
        node = self._cut(match.node, length)
        self._share_to(sequence, node, 0, length)
        self._running.add(sequence)
        self._arrive(sequence, node)
        return sequence, length

    def advance(self, sequence: SequenceId, tokens: array[int], limit: int) -> int:
        """Take over what others computed of `tokens` (the sequence's whole path ahead included) since it began.

        Returns how far the sequence reaches now; never less than before.
        """
        tip = self._tip_of[sequence]
        match = self.match(tokens)
        length = min(match.length, limit)
        if length <= tip.end:
            return tip.end
        node = self._cut(match.node, length)
        tip = self._tip_of[sequence]
        self._share_to(sequence, node, tip.end, length)
        self._arrive(sequence, node)
        return length

    def extend(self, sequence: SequenceId, tokens: Sequence[int]) -> None:
        """Record that a running sequence has computed `tokens` after its tip."""
        node = self._tip_of[sequence]
        if node is not self._root and not node.children and node.tips == {sequence}:
            node.tokens.extend(tokens)
            self.cells_used += len(tokens)
            self._touch(node)
            return
        run = array("i", tokens)
        while run:
            child = node.children.get(run[0])
            if child is None:
                node, run = self._add_child(node, run, sequence), array("i")
                break
            same = common_length(child.tokens, run)
            if same < len(child.tokens):
                child = self._split(child, same)
            self._replace_twin(sequence, child)
            node, run = child, run[same:]
        self._arrive(sequence, node)

    def finish(self, sequence: SequenceId) -> None:
        """End a running sequence; what it computed stays until it is evicted."""
        self._running.discard(sequence)
        node = self._tip_of[sequence]
        if node is self._root or node.children or len(node.tips) > 1:
            self._drop_tip(sequence)

    def make_room(self, cells: int) -> bool:
        """Evict least recently used runs that no running sequence holds, until `cells` are free. False if it can't."""
        while self.cells_free < cells:
            leaf = min(self._idle_leaves(), key=lambda n: n.last_used, default=None)
            if leaf is None:
                return False
            self._shorten(leaf, min(len(leaf.tokens), max(cells - self.cells_free, 1)))
        return True

    def evictable_cells(self) -> int:
        """Return how many cells could be freed without touching a running sequence."""
        kept = set()
        for sequence in self._running:
            node: Node | None = self._tip_of[sequence]
            while node is not None and id(node) not in kept:
                kept.add(id(node))
                node = node.parent
        return sum(len(n.tokens) for n in self.nodes() if id(n) not in kept)

    def clear(self) -> None:
        """Forget everything; nothing may be running."""
        for sequence in list(self._tip_of):
            self._drop_tip(sequence)
        self._root.children.clear()
        self.cells_used = 0

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the root."""
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def check(self) -> None:
        """Assert that the index is consistent; for tests."""
        total = 0
        for node in self.nodes():
            assert node.tokens, "an empty run"
            assert node.parent is not None
            assert node.parent.end == node.start
            assert node.parent.children[node.tokens[0]] is node
            assert node.children or node.tips, "a leaf that nobody holds"
            idle = node.tips - self._running
            assert not idle or (len(node.tips) == 1 and not node.children), "an idle sequence that holds nothing more"
            total += len(node.tokens)
        assert total == self.cells_used, (total, self.cells_used)
        assert self.cells_used <= self.cells_total
        for sequence, node in self._tip_of.items():
            assert sequence in node.tips
        assert len(self._tip_of) + len(self._free) == self.sequences_total

    # -- inside ------------------------------------------------------------------------------------------------

    def _touch(self, node: Node | None) -> None:
        self._tick += 1
        while node is not None:
            node.last_used = self._tick
            node = node.parent

    def _cut(self, node: Node, length: int) -> Node:
        """Return the node that ends exactly at `length` on the path to `node`, splitting a run if need be."""
        while node.start >= length and node.parent is not None:
            node = node.parent
        return node if node.end == length else self._split(node, length - node.start)

    def _split(self, node: Node, at: int) -> Node:
        """Cut a run in two; tips stay with the lower half. Returns the upper half."""
        assert node.parent is not None
        assert 0 < at < len(node.tokens)
        upper = Node(node.parent, node.tokens[:at], node.start)
        upper.last_used = node.last_used
        node.parent.children[upper.tokens[0]] = upper
        node.tokens = node.tokens[at:]
        node.start = upper.end
        node.parent = upper
        upper.children[node.tokens[0]] = node
        return upper

    def _holder(self, node: Node) -> SequenceId:
        while not node.tips:
            node = next(iter(node.children.values()))
        return next(iter(node.tips))

    def _share_to(self, sequence: SequenceId, node: Node, start: int, end: int) -> None:
        if end > start:
            self._cells.share(self._holder(node), sequence, start, end)

    def _add_child(self, node: Node, run: array[int], sequence: SequenceId) -> Node:
        child = Node(node, run, node.end)
        node.children[run[0]] = child
        self.cells_used += len(run)
        self._set_tip(sequence, child)
        for idle in node.tips - self._running:
            self._drop_tip(idle)
        return child

    def _replace_twin(self, sequence: SequenceId, node: Node) -> None:
        """`sequence` computed a run that is already in the tree: keep the older cells, let go of the younger."""
        holder = self._holder(node)
        if holder != sequence:
            self._cells.release(sequence, node.start, node.end)
            self._cells.share(holder, sequence, node.start, node.end)

    def _arrive(self, sequence: SequenceId, node: Node) -> None:
        """Make `node` a running sequence's tip; idle tips there hold nothing more, so that their ids become free."""
        self._set_tip(sequence, node)
        for idle in node.tips - self._running:
            self._drop_tip(idle)
        self._touch(node)

    def _set_tip(self, sequence: SequenceId, node: Node) -> None:
        old = self._tip_of.get(sequence)
        if old is not None:
            old.tips.discard(sequence)
        self._tip_of[sequence] = node
        node.tips.add(sequence)

    def _drop_tip(self, sequence: SequenceId) -> None:
        node = self._tip_of.pop(sequence)
        node.tips.discard(sequence)
        self._cells.release(sequence)
        self._free.append(sequence)

    def _idle_leaves(self) -> list[Node]:
        return [n for n in self.nodes() if not n.children and not (n.tips & self._running)]

    def _shorten(self, leaf: Node, count: int) -> None:
        keep = len(leaf.tokens) - count
        self.cells_used -= count
        self.evicted_tokens += count
        if keep:
            for sequence in leaf.tips:
                self._cells.release(sequence, leaf.start + keep, -1)
            leaf.tokens = leaf.tokens[:keep]
            return
        parent = leaf.parent
        assert parent is not None
        for sequence in list(leaf.tips):
            self._cells.release(sequence, leaf.start, -1)
            self._set_tip(sequence, parent)
        del parent.children[leaf.tokens[0]]
        for sequence in list(parent.tips - self._running):
            if parent is self._root or parent.children or len(parent.tips) > 1:
                self._drop_tip(sequence)

    def _retire_one(self) -> None:
        """Free a sequence id by evicting the least recently used idle leaf whole."""
        while not self._free:
            leaf = min(self._idle_leaves(), key=lambda n: n.last_used, default=None)
            if leaf is None:
                raise EngineError(f"all {self.sequences_total} sequences are running", hint="raise cache.max_sequences")
            self._shorten(leaf, len(leaf.tokens))
