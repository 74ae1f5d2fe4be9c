"""The radix index as data, for people who look at it. Read it on the engine thread; it changes nothing."""

from __future__ import annotations

from akashic_daemon.cache.index import RadixIndex
from akashic_daemon.cache.node import Node
from akashic_daemon.program.path import Drop, Insert, Repos, Shift
from akashic_daemon.program.ranges import size
from akashic_daemon.protocol.context import CacheNode, CacheTree
from akashic_daemon.types import SequenceId


def describe(index: RadixIndex, *, model: str | None, depth: int) -> CacheTree:
    """Return the tree down to `depth` nodes below the root, the most recently used branch first."""
    shown: dict[Node, CacheNode] = {}
    level: dict[Node, int] = {}
    order = _parents_first(index)
    running = index.running
    roots: list[CacheNode] = []
    for node in order:
        parent = node.parent
        assert parent is not None
        level[node] = level.get(parent, 0) + 1
        if level[node] > depth:
            continue
        shown[node] = _node(node, running)
        (shown[parent].children if parent in shown else roots).append(shown[node])
    below: dict[Node, int] = {}
    for node in reversed(order):
        own = below.get(node, 0)
        assert node.parent is not None
        below[node.parent] = below.get(node.parent, 0) + own + 1
        if level[node] == depth:
            shown[node].hidden_nodes = own
    return CacheTree(
        model=model,
        cells_total=index.cells_total,
        cells_used=index.cells_used,
        sequences_total=index.sequences_total,
        sequences_used=index.sequences_used,
        nodes=len(order),
        roots=roots,
    )


def _parents_first(index: RadixIndex) -> list[Node]:
    tops = [node for node in index.nodes() if node.parent is not None and node.parent.parent is None]
    out: list[Node] = []
    stack = sorted(tops, key=_last_used)
    while stack:
        node = stack.pop()
        out.append(node)
        stack.extend(sorted(node.children.values(), key=_last_used))
    return out


def _last_used(node: Node) -> int:
    return node.last_used


def _node(node: Node, running: frozenset[SequenceId]) -> CacheNode:
    return CacheNode(
        kind="run" if node.op is None else "drop" if isinstance(node.op, Drop) else _other(node),
        tokens=_tokens(node),
        resident_tokens=size(node.resident()),
        holders=len(node.held),
        running=len(running & node.held.keys()),
        last_used=node.last_used,
    )


def _other(node: Node) -> str:
    return "repos" if isinstance(node.op, Repos) else "shift" if isinstance(node.op, Shift) else "insert"


def _tokens(node: Node) -> int:
    if isinstance(node.op, Drop):
        return node.before.dropped_by(node.op)
    if isinstance(node.op, Repos):
        return node.after.tokens
    if isinstance(node.op, Shift):
        return node.before.moved_by(node.op)
    return node.op.count if isinstance(node.op, Insert) else len(node.key)
