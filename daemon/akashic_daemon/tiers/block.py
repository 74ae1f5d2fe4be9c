"""A block: the KV of at most 128 consecutive tokens of one message on one path, named for ever by its chain digest.

Blocks form a trie. A block's *label* says where it stands in it: the parent, the operations that took effect between the
parent's end and its start, its tokens, its first trajectory index and position. A block may be label only: its KV was
never worth keeping (the tokens were dropped before), but the identity of later blocks depends on them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from akashic_daemon.cache.keys import OpTable, marker_places
from akashic_daemon.engine.base import AS_COMPUTED, STORAGES
from akashic_daemon.errors import BadRequest, StoreError
from akashic_daemon.program.active import ActiveCache
from akashic_daemon.program.path import Op, PlacedOp, op_from_json, op_to_json
from akashic_daemon.tiers.arena import Slots
from akashic_daemon.types import BLOCK_TOKENS

_LABEL = struct.Struct("<HHii")
_LABEL_VERSION = 1


@dataclass(slots=True, eq=False)
class Block:
    """A block of the trie. `slots` where its KV is in the RAM tier; `on_ssd` whether the SSD tier has it.

    is_labelled: whether the SSD tier has its label. is_moving: whether its export is under way. size_bytes: of its KV
    as exported, 0 as long as nothing was. used: when, in ticks of the catalogue. pins: moves that need its RAM copy.
    groups: the sessions that were seen to have it since the start; the SSD tier knows of those before.
    """

    key: str
    parent: Block | None
    ops: tuple[Op, ...]
    tokens: array[int]
    first: int
    position: int
    slots: Slots | None = None
    on_ssd: bool = False
    is_labelled: bool = False
    is_moving: bool = False
    size_bytes: int = 0
    pins: int = 0
    used: int = 0
    prefetched: bool = False
    groups: tuple[str, ...] = ()
    children: list[Block] = field(default_factory=list)

    def join(self, group: str) -> None:
        """Let it be a session's too."""
        if group not in self.groups:
            self.groups += (group,)

    @property
    def has_copy(self) -> bool:
        """Whether its KV is in any tier below the engine."""
        return self.slots is not None or self.on_ssd

    @property
    def end(self) -> int:
        """The trajectory index after its last token."""
        return self.first + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of tokens between two operations: `ops` take effect before its first token."""

    ops: tuple[Op, ...]
    first: int
    position: int
    tokens: array[int]


def stretches(key: array[int], table: OpTable) -> Iterator[Stretch]:
    """Yield the runs of a key of the radix index, cut where an insertion ends; operations at the very end belong to none."""
    state, at = ActiveCache(), 0
    ops: list[Op] = []
    markers = [*marker_places(key), len(key)]
    while at < len(key):
        if key[at] < 0:
            op = table.op(key[at])
            state = state.apply(op)
            ops.append(op)
            at += 1
            continue
        end = markers[bisect_right(markers, at)]
        if state.inserting:
            end = min(end, at + state.inserting)
        yield Stretch(tuple(ops), state.next_index, state.position, key[at:end])
        state, ops, at = state.append(end - at), [], end


def stored_fingerprint(fingerprint: str, storage: str) -> str:
    """Return what takes part in the names of a model's blocks: KV stored in eight bits has other values than what is computed."""
    return fingerprint if storage == AS_COMPUTED else f"{fingerprint}|{storage}"


def stored_otherwise(fingerprint: str) -> Iterator[str]:
    """Yield what takes part in the names of the same model's blocks where they are stored in the other ways."""
    model = fingerprint.partition("|")[0]
    return (other for other in (stored_fingerprint(model, s) for s in STORAGES) if other != fingerprint)


def block_key(fingerprint: str, parent: str | None, ops: tuple[Op, ...], tokens: array[int]) -> str:
    """Return the tagged chain digest: parent, operations, tokens and fingerprint take part."""
    state = hashlib.blake2b(digest_size=16)
    head = json.dumps([fingerprint, parent, _ops_to_json(ops), len(tokens)], separators=(",", ":"))
    state.update(head.encode())
    state.update(tokens.tobytes())
    return "kv1:" + state.hexdigest()


def to_label(block: Block) -> bytes:
    """Return what the SSD tier keeps beside a block's KV; `from_label` is the inverse."""
    parent = (block.parent.key if block.parent is not None else "").encode()
    ops = json.dumps(_ops_to_json(block.ops), separators=(",", ":")).encode() if block.ops else b""
    head = _LABEL.pack(_LABEL_VERSION, len(parent), block.first, block.position)
    return head + parent + struct.pack("<I", len(ops)) + ops + block.tokens.tobytes()


def from_label(key: str, label: bytes) -> tuple[str, Block]:
    """Return the parent's key (empty at the top) and the block, without its parent. Raises StoreError for a foreign label."""
    try:
        version, parent_bytes, first, position = _LABEL.unpack_from(label)
        if version != _LABEL_VERSION:
            raise ValueError(f"version {version}")
        at = _LABEL.size + parent_bytes
        parent = label[_LABEL.size : at].decode()
        (ops_bytes,) = struct.unpack_from("<I", label, at)
        at += 4
        raw = json.loads(label[at : at + ops_bytes]) if ops_bytes else []
        ops = tuple(op_from_json(op).op for op in raw)
        tokens = array("i", label[at + ops_bytes :])
        if not 0 < len(tokens) <= BLOCK_TOKENS:
            raise ValueError(f"{len(tokens)} tokens")
    except (ValueError, struct.error, TypeError, BadRequest) as error:
        raise StoreError(f"reading the label of the block {key}: {error}", hint="`akashic cache verify`") from error
    return parent, Block(key, None, ops, tokens, first, position)


def _ops_to_json(ops: tuple[Op, ...]) -> list[dict[str, object]]:
    return [op_to_json(PlacedOp(0, op)) for op in ops]
