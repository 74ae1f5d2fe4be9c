"""`cache verify` and labels: what can't be found by any path is told, and set aside where that is asked."""

from __future__ import annotations

from array import array
from pathlib import Path

from akashic_daemon.store.blocks.check import Kind
from akashic_daemon.tiers.block import Block, block_key, to_label
from akashic_daemon.tiers.catalogue import Catalogue
from akashic_daemon.tiers.labels import check_labels
from akashic_daemon.tiers.mover import Mover
from akashic_daemon.tiers.removal import verify
from akashic_daemon.tiers.ssd import Outgoing, SsdTier, open_ssd
from block_stores import FakeClock
from tiers_driver import InlineMover


def block(text: str, parent: Block | None, fingerprint: str = "fp") -> Block:
    tokens = array("i", list(text.encode()))
    key = block_key(fingerprint, parent.key if parent is not None else None, (), tokens)
    first = parent.end if parent is not None else 0
    return Block(key, parent, (), tokens, first, first)


def outgoing(one: Block, *, label: bytes | None = None, fingerprint: str = "fp") -> Outgoing:
    return Outgoing(one.key, to_label(one) if label is None else label, "g", one.first, fingerprint, b"kv" * 3000)


def mover_of(folder: Path) -> tuple[Mover, SsdTier]:
    mover = InlineMover(lambda: open_ssd(folder, 1 << 24, 1 << 40, FakeClock()))
    mover.start()
    assert mover.ssd is not None
    return mover, mover.ssd


def test_labels_that_mean_something_else_and_blocks_without_parents_are_found_and_set_aside(tmp_path: Path) -> None:
    mover, ssd = mover_of(tmp_path)
    root = block("once upon a time", None)
    child, lost = block("there was a king", root), block("who is not here", root)
    grandchild = block("and so he went", lost)
    other = block("another model's", None, "other")
    swapped = to_label(block("there was a fool", root))
    ssd.write([outgoing(root), outgoing(child, label=swapped), outgoing(grandchild)])
    ssd.write([outgoing(other, label=b"nonsense", fingerprint="other")])
    assert ssd.verify() == [], "the store itself is sound"
    found, mended = verify(mover, fix=False)
    assert {(f.kind, f.subject) for f in found} == {
        (Kind.WRONG_LABEL, f"record {child.key}"),
        (Kind.WRONG_LABEL, f"record {other.key}"),
        (Kind.ORPHAN, f"record {grandchild.key}"),
    }
    assert mended == set()
    found, mended = verify(mover, fix=True)
    assert len(found) == len(mended) == 3
    assert verify(mover, fix=False) == ([], set())
    assert [s.key for s in ssd.labels("fp")] == [root.key]
    mover.stop(0)


def test_what_goes_on_from_a_damaged_block_is_not_set_aside_with_it(tmp_path: Path) -> None:
    mover, ssd = mover_of(tmp_path)
    root = block("once upon a time", None)
    child = block("there was a king", root)
    ssd.write([outgoing(root), outgoing(child)])
    (extent,) = (tmp_path / "extents").iterdir()
    raw = bytearray(extent.read_bytes())
    raw[raw.index(b"kvkv")] ^= 1
    extent.write_bytes(raw)
    found, mended = verify(mover, fix=True)
    assert [(f.kind, f.subject) for f in found] == [(Kind.WRONG_CHECKSUM, f"record {root.key}")]
    assert len(mended) == 1
    assert [s.key for s in ssd.labels("fp")] == [child.key]
    mover.stop(0)


def test_a_sound_store_has_no_findings_whatever_models_it_holds(tmp_path: Path) -> None:
    mover, ssd = mover_of(tmp_path)
    for fingerprint in ("one", "two"):
        catalogue = Catalogue(fingerprint)
        parent: Block | None = None
        for text in ("a b c", "d e f", "g"):
            first = parent.end if parent is not None else 0
            parent = catalogue.add(parent, (), array("i", list(text.encode())), first, first)
            ssd.write([outgoing(parent, fingerprint=fingerprint)])
    assert check_labels(ssd, None) == {}
    mover.stop(0)


def test_what_the_running_daemon_still_leads_to_is_no_orphan(tmp_path: Path) -> None:
    _, ssd = mover_of(tmp_path)
    running = Catalogue("fp")
    root = running.add(None, (), array("i", [1, 2, 3]), 0, 0)
    child = running.add(root, (), array("i", [4, 5]), 3, 3)
    ssd.write([outgoing(child)])
    assert list(check_labels(ssd, None)) == [child.key]
    assert check_labels(ssd, running) == {}
    assert list(check_labels(ssd, Catalogue("fp"))) == [child.key]
