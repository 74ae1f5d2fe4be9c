"""Damage in a block store is found both ways, mended only when asked, and never served."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from akashic_daemon.errors import StoreError
from akashic_daemon.store.blocks.check import Finding, Kind, check
from akashic_daemon.store.blocks.record import Found, Miss, MissReason
from akashic_daemon.store.blocks.store import BlockStore
from block_stores import open_store, read_group, record


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    store = open_store(tmp_path)
    store.put([record(f"k{i}", sequence=i, size_bytes=[5000, 60, 4100][i % 3]) for i in range(6)])
    yield store
    store.close()


def execute(sql: str) -> Callable[[BlockStore], object]:
    def run(store: BlockStore) -> None:
        store.database.connection.execute("PRAGMA foreign_keys=OFF")
        store.database.connection.execute(sql)
        store.database.connection.execute("PRAGMA foreign_keys=ON")

    return run


def first_file(store: BlockStore) -> Path:
    return next(iter(store.extents)).path


def append_to_file(store: BlockStore) -> None:
    with first_file(store).open("ab") as file:
        file.write(b"torn")


def cut_file(store: BlockStore) -> None:
    with first_file(store).open("r+b") as file:
        file.truncate(first_file(store).stat().st_size - 1)


def flip(store: BlockStore, at: int) -> None:
    with first_file(store).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


DAMAGE: dict[str, tuple[Kind, Callable[[BlockStore], object]]] = {
    "payload": (Kind.WRONG_CHECKSUM, lambda s: flip(s, 200)),
    "file header": (Kind.DAMAGED_EXTENT, lambda s: flip(s, 9)),
    "inline payload": (Kind.WRONG_CHECKSUM, execute("UPDATE records SET payload = zeroblob(60) WHERE key = 'k1'")),
    "inline size": (Kind.WRONG_SIZE, execute("UPDATE records SET size_bytes = 61 WHERE key = 'k1'")),
    "size": (Kind.WRONG_SIZE, execute("UPDATE records SET size_bytes = 5001 WHERE key = 'k0'")),
    "key": (Kind.WRONG_CHECKSUM, execute("UPDATE records SET key = 'kk' WHERE key = 'k0'")),
    "kind": (Kind.WRONG_CHECKSUM, execute("UPDATE records SET kind = 'xx' WHERE key = 'k0'")),
    "fingerprint": (Kind.WRONG_CHECKSUM, execute("UPDATE records SET fingerprint = 'fq' WHERE key = 'k0'")),
    "token ids": (Kind.WRONG_CHECKSUM, execute("UPDATE records SET token_ids = x'00000001' WHERE key = 'k0'")),
    "place": (Kind.NO_PAYLOAD, execute("UPDATE records SET offset_bytes = 40 WHERE key = 'k0'")),
    "extent": (Kind.NO_PAYLOAD, execute("UPDATE records SET extent_id = 77 WHERE key = 'k0'")),
    "cut": (Kind.NO_PAYLOAD, cut_file),
    "tail": (Kind.UNCOMMITTED_TAIL, append_to_file),
    "group": (Kind.NO_GROUP, execute("DELETE FROM members WHERE sequence = 2")),
    "member": (Kind.DANGLING, execute("UPDATE members SET record_id = 99 WHERE sequence = 2")),
    "file": (Kind.UNKNOWN_FILE, lambda s: (s.extents.folder / "notes.txt").write_text("mine")),
    "gone": (Kind.UNREADABLE, lambda s: first_file(s).rename(first_file(s).with_suffix(".bak"))),
}


def all_read_whole_or_missed(store: BlockStore) -> int:
    """Read everything; what is served must be what was written. Return how many are missing."""
    with read_group(store, "g") as reads:
        got = list(reads)
    for found in got:
        if isinstance(found, Found):
            assert bytes(found.payload) == record(found.entry.key, size_bytes=found.entry.size_bytes).payload
    return sum(isinstance(found, Miss) for found in got)


def test_a_sound_store_has_no_findings_also_with_dead_records(store: BlockStore) -> None:
    assert check(store) == []
    store.delete(["k2", "k0"])
    assert check(store) == []


def test_every_kind_but_a_broken_index_and_what_only_tiers_know_is_tried_here() -> None:
    assert {kind for kind, _ in DAMAGE.values()} == set(Kind) - {Kind.DAMAGED_INDEX, Kind.WRONG_LABEL, Kind.ORPHAN}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_changes_nothing_unasked_and_is_mended_when_asked(store: BlockStore, name: str) -> None:
    kind, spoil = DAMAGE[name]
    spoil(store)
    before = [store.database.connection.execute(f"SELECT * FROM {t}").fetchall() for t in ("records", "quarantine")]
    findings = check(store)
    assert kind in {f.kind for f in findings}
    assert [
        store.database.connection.execute(f"SELECT * FROM {t}").fetchall() for t in ("records", "quarantine")
    ] == before
    if name == "gone":
        assert all_read_whole_or_missed(store) == 4
        return
    assert check(store, fix=True) == findings
    left = [f.kind for f in check(store)]
    assert left == ([Kind.UNKNOWN_FILE] if name == "file" else [])
    assert all_read_whole_or_missed(store) == 0


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_damaged_is_never_served_and_never_raises(store: BlockStore, name: str) -> None:
    DAMAGE[name][1](store)
    all_read_whole_or_missed(store)
    for key in [f"k{i}" for i in range(6)]:
        found = store.get(key)
        if isinstance(found, Found):
            assert bytes(found.payload) == record(key, size_bytes=found.entry.size_bytes).payload


def test_a_record_found_damaged_is_quarantined_once_and_can_be_stored_anew(store: BlockStore) -> None:
    flip(store, 200)
    miss = store.get("k0")
    assert isinstance(miss, Miss)
    assert miss.reason is MissReason.DAMAGED
    assert store.stats().counters["quarantined_records"] == 1
    assert store.stats().quarantined_now == 1
    again = store.get("k0")
    assert isinstance(again, Miss)
    assert again.reason is MissReason.ABSENT
    assert store.put([record("k0")]).stored == 1
    assert isinstance(store.get("k0"), Found)


def test_a_record_that_a_sweep_found_damaged_is_replaced_when_it_is_stored_anew(store: BlockStore) -> None:
    flip(store, 200)
    with read_group(store, "g") as reads:
        assert [isinstance(f, Miss) for f in reads] == [True, False, False, False, False, False]
    assert [e.key for e in store.entries("g")] == [f"k{i}" for i in range(1, 6)]
    assert store.put([record("k0")]).stored == 1
    assert all_read_whole_or_missed(store) == 0
    assert len(store.entries("g")) == 6


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_flip_of_any_byte_of_an_extent_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    monkeypatch.setattr("akashic_daemon.store.blocks.store.INLINE_BYTES", 64)
    store = open_store(tmp_path)
    store.put([record("k0", size_bytes=150), record("k1", sequence=1, size_bytes=90)])
    if is_deleted:
        store.delete(["k0"])
    sound = first_file(store).read_bytes()
    assert len(sound) == 32 + 56 + 150 + 56 + 90
    for at in range(len(sound)):
        flip(store, at)
        findings = check(store)
        assert findings, at
        assert all(isinstance(f, Finding) for f in findings)
        flip(store, at)
    assert check(store) == []
    store.close()


def test_every_byte_of_a_small_extent_matters_to_a_reader(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put([record("k0", size_bytes=4096)])
    for at in range(32, first_file(store).stat().st_size):
        flip(store, at)
        with read_group(store, "g") as reads:
            assert [isinstance(f, Miss) for f in reads] == [True], at
        store.notes.take()  # what was found isn't written here, so that the next byte can be tried
        flip(store, at)
    assert isinstance(store.get("k0"), Found)
    store.close()


def test_whichever_page_of_the_index_is_spoilt_it_is_refused_or_found_and_nothing_wrong_is_served(
    tmp_path: Path,
) -> None:
    records = [record(f"k{i}", sequence=i, size_bytes=[1500, 5000][i % 2]) for i in range(24)]
    store = open_store(tmp_path / "sound")
    store.put(records)
    store.close()
    sound = (tmp_path / "sound" / "blocks.sqlite").read_bytes()
    refused = found = 0
    for page in range(len(sound) // 4096):
        folder = tmp_path / str(page)
        shutil.copytree(tmp_path / "sound", folder)
        spoilt = sound[: page * 4096 + 9] + b"\xa5" * 3000 + sound[page * 4096 + 3009 :]
        (folder / "blocks.sqlite").write_bytes(spoilt)
        try:
            store = open_store(folder)
        except StoreError:
            refused += 1
            assert len(list((folder / "extents").iterdir())) == 1
            continue
        try:
            found += bool(check(store))
        except StoreError:
            found += 1
        for one in records:
            got = store.get(one.key)
            assert isinstance(got, Miss) or bytes(got.payload) == one.payload
        store.close()
    assert refused
    assert found
