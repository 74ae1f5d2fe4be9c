"""Removing blocks for good: a session's, or what a prune takes; and looking for damage in what is stored.

Everything here runs on the mover's thread. What leaves the disk leaves the catalogue with it, so that nothing is looked
for that is gone. A block that several sessions have stays until the last of them is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from akashic_daemon.errors import AkashicError
from akashic_daemon.store.blocks.check import Finding
from akashic_daemon.tiers.block import Block
from akashic_daemon.tiers.labels import check_labels
from akashic_daemon.tiers.mover import Mover


@dataclass(frozen=True, slots=True)
class Choice:
    """What a prune takes. unused_for_s: blocks not used for so long. other_than: those of other models than this one."""

    everything: bool = False
    unused_for_s: float | None = None
    other_than: str | None = None
    to_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """What was removed. freed_bytes: what the disk got back. left: why payloads are still on the disk, else empty."""

    ssd_blocks: int = 0
    ssd_bytes: int = 0
    freed_bytes: int = 0
    ram_blocks: int = 0
    ram_bytes: int = 0
    left: str = ""


def would_prune(mover: Mover, choice: Choice) -> Gone:
    """Return what `prune` would remove. Raises StoreError."""
    mover.flush_writes()
    found = Gone()
    if mover.ssd is not None:
        removed = mover.ssd.would_prune(
            everything=choice.everything,
            unused_for_s=choice.unused_for_s,
            other_than=choice.other_than,
            to_bytes=choice.to_bytes,
        )
        found = Gone(removed.records, removed.stored_bytes)
    if not choice.everything or mover.catalogue is None:
        return found
    held = [block.slots.size_bytes for block in mover.catalogue.blocks() if block.slots is not None and not block.pins]
    return Gone(found.ssd_blocks, found.ssd_bytes, 0, len(held), sum(held))


def prune(mover: Mover, choice: Choice) -> Gone:
    """Remove blocks, and give back to the disk what dead ones took. Everything means the RAM tier too. Raises StoreError."""
    mover.flush_writes()
    ram_blocks = ram_bytes = 0
    if choice.everything and mover.catalogue is not None:
        ram_blocks, ram_bytes = _drop_from_ram(mover, mover.catalogue.blocks())
    if mover.ssd is None:
        return Gone(ram_blocks=ram_blocks, ram_bytes=ram_bytes)
    pruned = mover.ssd.prune(
        everything=choice.everything,
        unused_for_s=choice.unused_for_s,
        other_than=choice.other_than,
        to_bytes=choice.to_bytes,
    )
    mover.gone_from_ssd(pruned.removed.keys, "pruned")
    mover.follow_evictions()
    removed = pruned.removed
    return Gone(removed.records, removed.stored_bytes, pruned.freed_bytes, ram_blocks, ram_bytes, _left(pruned.left))


def forget(mover: Mover, group: str, *, wipe: bool) -> Gone:
    """Remove the blocks that only this session has, also those that wait to be written.

    wipe: rewrite the files in which they lay, so that nothing of them is left on the disk. Raises StoreError when the
    index can't be written; the session's blocks are on the disk still then.
    """
    own = _leave(mover, group)
    mover.regroup_writes(group, None)
    removed_keys: tuple[str, ...] = ()
    blocks = size_bytes = freed_bytes = 0
    left = ""
    ssd = mover.ssd
    if ssd is not None:
        removed = ssd.forget_group(group)
        blocks, size_bytes, removed_keys = removed.records, removed.stored_bytes, removed.keys
        if mover.catalogue is not None:
            own += [block for key in removed_keys if (block := mover.catalogue.get(key)) is not None]
            for block in own:
                block.on_ssd = block.on_ssd and block.key not in removed.keys
    ram_blocks, ram_bytes = _drop_from_ram(mover, (b for b in own if not b.groups and not b.on_ssd))
    mover.gone_from_ssd(removed_keys, "removed")
    # Also where nothing went now: what was evicted of the session earlier may still lie in a file.
    if ssd is not None and wipe and (removed_keys or ssd.stats().dead_bytes):
        try:
            pruned = ssd.prune()
            freed_bytes, left = pruned.freed_bytes, _left(pruned.left)
        except AkashicError as error:
            left = f"the files could not be rewritten: {error}"
        mover.follow_evictions()
    return Gone(blocks, size_bytes, freed_bytes, ram_blocks, ram_bytes, left)


def rename(mover: Mover, old: str, new: str) -> None:
    """Let a session's blocks be another's. Raises StoreError."""
    for block in _leave(mover, old):
        block.join(new)
    mover.regroup_writes(old, new)
    if mover.ssd is not None:
        mover.ssd.rename_group(old, new)


def verify(mover: Mover, *, fix: bool) -> tuple[list[Finding], set[tuple[str, str]]]:
    """Return what is wrong with the block store, and which of it (kind, subject) was mended. Raises StoreError.

    What waits to be written is written first: else its children would be taken for orphans.
    """
    mover.flush_writes()
    ssd = mover.ssd
    if ssd is None:
        return [], set()
    # Looked for first: what goes on from a block that is mended away now may still be of use to the running daemon.
    labels = check_labels(ssd, mover.catalogue)
    found = ssd.verify(fix=fix)
    known = {f.subject for f in found}
    labels = {key: finding for key, finding in labels.items() if finding.subject not in known}
    if fix and labels:
        ssd.set_aside({key: finding.detail for key, finding in labels.items()})
    found += labels.values()
    mover.follow_evictions()
    if not fix or not found:
        return found, set()
    left = {(f.kind.value, f.subject) for f in (*ssd.verify(), *check_labels(ssd, mover.catalogue).values())}
    return found, {(f.kind.value, f.subject) for f in found} - left


def _leave(mover: Mover, group: str) -> list[Block]:
    """Take a session from its blocks, and return them."""
    own = [b for b in mover.catalogue.blocks() if group in b.groups] if mover.catalogue is not None else []
    for block in own:
        block.groups = tuple(g for g in block.groups if g != group)
    return own


def _drop_from_ram(mover: Mover, blocks: Iterable[Block]) -> tuple[int, int]:
    """Free RAM copies; return how many, and their bytes. One that is being read stays until it isn't."""
    count = size_bytes = 0
    for block in blocks:
        slots = block.slots
        if slots is None:
            if mover.catalogue is not None:
                mover.catalogue.drop_empty(block)
            continue
        if mover.free_ram(block):
            count, size_bytes = count + 1, size_bytes + slots.size_bytes
    return count, size_bytes


def _left(files: int) -> str:
    if not files:
        return ""
    return f"{files} files that hold removed payloads are being read or have no room to be rewritten: prune again later"
