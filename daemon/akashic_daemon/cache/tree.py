"""The radix tree: nodes, who stands where, and the cuts that keep every tip at the end of a node.

A *runner* is what is remembered of a running sequence. It knows cells only through `Holdings`, and no engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from akashic_daemon.cache.holdings import Holdings
from akashic_daemon.cache.node import Node
from akashic_daemon.cache.recovery import Needed
from akashic_daemon.program.active import ActiveCache
from akashic_daemon.types import SequenceId


@dataclass(frozen=True, slots=True)
class Match:
    """How much of a key is known: `length` entries, ending inside or at the end of `node`."""

    length: int
    node: Node


@dataclass(slots=True)
class Runner:
    """A running sequence. `known` is how far its key was known when it began, `needed` what it reads of that.

    markers: where operations stand in its key. pinned: nodes ahead that it waits for, nearest last. scratch: the
    sequence of the insertion that it is in.
    """

    needed: Needed
    known: int
    markers: list[int]
    pinned: list[Node] = field(default_factory=list)
    scratch: SequenceId | None = None
    moved_tokens: int = 0


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading entries are equal."""
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


class Tree:
    """`sequences` ids may stand in it or be lent."""

    def __init__(self, holdings: Holdings, sequences: int) -> None:
        self.holdings = holdings
        self.root = Node(None, array("i"), ActiveCache(), 0, None)
        self.tip_of: dict[SequenceId, Node] = {}
        self.runners: dict[SequenceId, Runner] = {}
        self.free = [SequenceId(i) for i in reversed(range(sequences))]
        self._tick = 0

    def match(self, key: array[int]) -> Match:
        """Return the longest known prefix of `key`, holes included. Changes nothing."""
        node, at = self.root, 0
        while at < len(key):
            child = node.children.get(key[at])
            if child is None:
                break
            same = common_length(child.key, key[at : at + len(child.key)])
            at += same
            node = child
            if same < len(child.key):
                break
        return Match(at, node)

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def nodes_between(self, upper: Node, lower: Node) -> list[Node]:
        """Return the nodes below `upper` down to `lower`, deepest first."""
        out = []
        while lower is not upper and lower.depth >= upper.end and lower is not self.root:
            out.append(lower)
            assert lower.parent is not None
            lower = lower.parent
        return out

    def unpin(self, runner: Runner) -> None:
        """Let go of every node that a runner still waits for."""
        for node in runner.pinned:
            node.pins -= 1
            self.prune(node)
        runner.pinned.clear()

    def touch(self, node: Node) -> None:
        """Mark a node as just used."""
        self._tick += 1
        node.last_used = self._tick

    def arrive(self, sequence: SequenceId, node: Node) -> None:
        """Make `node` a running sequence's tip; idle tips there that hold nothing more give up their ids."""
        self.set_tip(sequence, node)
        runner = self.runners[sequence]
        while runner.pinned and runner.pinned[-1].end <= node.end:
            passed = runner.pinned.pop()
            passed.pins -= 1
            self.prune(passed)
        for idle in [t for t in node.tips if t not in self.runners]:
            self.settle(idle)
        self.touch(node)

    def set_tip(self, sequence: SequenceId, node: Node) -> None:
        """Let a sequence stand at the end of `node`."""
        old = self.tip_of.get(sequence)
        self.tip_of[sequence] = node
        node.tips.add(sequence)
        if old is not None and old is not node:
            old.tips.discard(sequence)
            self.prune(old)

    def settle(self, sequence: SequenceId) -> None:
        """Free the id of an idle sequence that holds nothing of its own."""
        if self.holdings.is_redundant(sequence):
            self.remove_tip(sequence)

    def remove_tip(self, sequence: SequenceId) -> int:
        """Let a sequence go with all that it holds; returns how many cells are free now."""
        node = self.tip_of.pop(sequence)
        node.tips.discard(sequence)
        freed = self.holdings.let_go_all(sequence)
        self.free.append(sequence)
        self.prune(node)
        return freed

    def prune(self, node: Node) -> None:
        """Remove leaves at which nothing stands and for which nothing waits."""
        while node.parent is not None and not node.children and not node.tips and not node.pins:
            parent = node.parent
            if parent.children.get(node.key[0]) is node:
                del parent.children[node.key[0]]
                parent.last_used = max(parent.last_used, node.last_used)
            node = parent

    def cut(self, node: Node, length: int) -> Node:
        """Return the node that ends exactly at `length` on the path to `node`, splitting a run if need be."""
        while node.depth >= length and node.parent is not None:
            node = node.parent
        return self.split(node, length - node.depth) if length < node.end else node

    def split(self, node: Node, at: int) -> Node:
        """Cut a run in two; tips stay with the lower half. Returns the upper half."""
        assert node.parent is not None
        assert 0 < at < len(node.key)
        upper = Node(node.parent, node.key[:at], node.before, node.depth, None)
        upper.last_used, upper.pins = node.last_used, node.pins
        node.parent.children[upper.key[0]] = upper
        node.key = node.key[at:]
        node.depth = upper.end
        node.before = upper.after
        node.parent = upper
        upper.children[node.key[0]] = node
        self.holdings.split(upper, node)
        for runner in self.runners.values():
            if node in runner.pinned:
                runner.pinned.insert(runner.pinned.index(node) + 1, upper)
        return upper
