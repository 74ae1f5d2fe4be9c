"""`akashic cache tree` on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from akashic_cli.render.units import count
from akashic_daemon.protocol.context import CacheNode, CacheTree


def print_tree(tree: CacheTree) -> None:
    """Draw it on stdout."""
    if tree.model is None:
        print("no model is loaded, so nothing is computed")
        return
    print(
        f"{tree.model}: {count(tree.cells_used)} of {count(tree.cells_total)} cells, "
        f"{count(tree.sequences_used)} of {count(tree.sequences_total)} sequences, {count(tree.nodes)} nodes"
    )
    for number, root in enumerate(tree.roots):
        for line in _lines(root, "", last=number == len(tree.roots) - 1):
            print(line)


def _lines(node: CacheNode, indent: str, *, last: bool) -> Iterator[str]:
    yield f"{indent}{'└' if last else '├'} {_told(node)}"
    below = indent + ("  " if last else "│ ")
    for number, child in enumerate(node.children):
        yield from _lines(child, below, last=number == len(node.children) - 1)
    if node.hidden_nodes:
        yield f"{below}└ … {count(node.hidden_nodes)} more nodes; --depth draws deeper"


def _told(node: CacheNode) -> str:
    parts = [f"{node.kind} {count(node.tokens)} tokens"]
    if node.kind == "run":
        missing = node.tokens - node.resident_tokens
        parts += [f"{count(missing)} evicted"] if missing else []
    elif node.resident_tokens:
        parts.append(f"{count(node.resident_tokens)} cells of its own")
    if node.running:
        parts.append(f"{count(node.running)} running")
    return ", ".join(parts)
