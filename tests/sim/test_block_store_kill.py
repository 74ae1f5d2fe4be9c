"""The block store after kill -9: it opens, verifies, and holds all that was told as stored. A few kills; more offline."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from akashic_daemon.errors import Conflict, StoreError, StoreTooNew, StoreUnwritable
from akashic_daemon.store.blocks.check import check
from akashic_daemon.store.blocks.layout import FILE_HEADER_BYTES, file_header
from akashic_daemon.store.blocks.record import Found
from block_stores import open_store, payload, read_group, record

KILLS = int(os.environ.get("BLOCK_STORE_KILLS", "5"))
_WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from block_stores import open_store, record
from akashic_daemon.store.blocks.compaction import compact
store = open_store(Path(sys.argv[1]))
at = len(store.entries("kept"))
while True:
    batch = [record(f"kept{at + i}", group="kept", sequence=at + i, size_bytes=[9000, 90][i % 2]) for i in range(4)]
    assert store.put(batch).refusal is None
    at += 4
    print("stored", at, flush=True)
    store.put([record(f"brief{at}.{i}", group="brief", sequence=i, size_bytes=6000) for i in range(3)])
    store.get(f"kept{at - 1}")
    store.delete_group("brief")
    compact(store)
    print("compacted", at, flush=True)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(folder), str(Path(__file__).parents[1])], stdout=subprocess.PIPE, text=True
    )


def test_killed_in_mid_write_it_opens_whole_with_all_that_was_told_as_stored(tmp_path: Path) -> None:
    """Invariant 6."""
    stored = 0
    for told in range(1, KILLS + 1):
        writer = start(tmp_path)
        assert writer.stdout is not None
        lines = list(itertools.islice(writer.stdout, 1 + told % 7))
        writer.kill()  # while it goes on with the next
        lines += writer.stdout.readlines()
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL
        stored = max([stored, *(int(line.split()[1]) for line in lines if line.startswith("stored"))])
        store = open_store(tmp_path)
        assert check(store) == []
        with read_group(store, "kept") as reads:
            kept = list(reads)
        assert len(kept) in (stored, stored + 4)
        for i, found in enumerate(kept):
            assert isinstance(found, Found)
            assert (found.entry.key, bytes(found.payload)) == (f"kept{i}", payload(f"kept{i}", [9000, 90][i % 2]))
        stored = len(kept)
        inline = 90 * (stored // 2)
        assert store.bytes_used == inline + sum(f.stat().st_size for f in (tmp_path / "extents").iterdir())
        store.delete_group("brief")
        store.close()


def test_a_store_that_another_process_writes_is_refused_and_free_once_it_is_dead(tmp_path: Path) -> None:
    writer = start(tmp_path)
    assert writer.stdout is not None
    assert writer.stdout.readline()
    with pytest.raises(Conflict, match="another process"):
        open_store(tmp_path)
    writer.kill()
    writer.stdout.close()
    writer.wait()
    store = open_store(tmp_path)
    assert check(store) == []
    store.close()


def test_a_torn_tail_is_cut_and_what_was_stored_before_it_stays(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put([record("k0"), record("k1", sequence=1)])
    used = store.bytes_used
    store.close()
    file = tmp_path / "extents" / "0001.ext"
    whole = file.read_bytes()
    for tail in (b"x", whole[FILE_HEADER_BYTES:], b"\0" * 100_000):
        file.write_bytes(whole + tail)
        store = open_store(tmp_path)
        assert file.read_bytes() == whole
        assert (store.bytes_used, check(store)) == (used, [])
        store.close()


@pytest.mark.parametrize("left", [0, 1, FILE_HEADER_BYTES, 3000, 5200, 10_000])
def test_records_of_an_extent_that_lost_its_end_are_quarantined_and_the_others_served(
    tmp_path: Path, left: int
) -> None:
    store = open_store(tmp_path)
    store.put([record("k0"), record("k1", sequence=1)])
    store.close()
    os.truncate(tmp_path / "extents" / "0001.ext", left)
    store = open_store(tmp_path)
    ends = [FILE_HEADER_BYTES + 5056 * (i + 1) for i in range(2)]
    assert [isinstance(store.get(f"k{i}"), Found) for i in range(2)] == [left >= end for end in ends]
    assert store.stats().quarantined_now == sum(left < end for end in ends)
    assert store.put([record("k0"), record("k1", sequence=1)]).refusal is None
    assert all(isinstance(store.get(f"k{i}"), Found) for i in range(2))
    check(store, fix=True)
    assert check(store) == []
    store.close()


def test_what_a_crash_left_is_removed_at_opening_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put([record("k0")])
    store.close()
    (tmp_path / "extents" / "0007.ext").write_bytes(b"never committed")
    (tmp_path / "extents" / "notes.txt").write_text("mine")
    store = open_store(tmp_path)
    assert sorted(f.name for f in (tmp_path / "extents").iterdir()) == ["0001.ext", "notes.txt"]
    store.put([record("big", group="other", size_bytes=300_000)])
    assert (tmp_path / "extents" / "0008.ext").exists()  # a number is never used twice
    store.close()


def test_an_index_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "blocks.sqlite")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(StoreTooNew, match="99"):
        open_store(tmp_path)


def test_an_extent_of_a_newer_version_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    store.put([record("k0")])
    store.close()
    file = tmp_path / "extents" / "0001.ext"
    with monkeypatch.context() as newer:
        newer.setattr("akashic_daemon.store.blocks.layout.VERSION", 2)
        content = file_header(1) + file.read_bytes()[FILE_HEADER_BYTES:]
    file.write_bytes(content)
    with pytest.raises(StoreTooNew, match="version 2"):
        open_store(tmp_path)
    assert file.read_bytes() == content


@pytest.mark.parametrize("content", [b"a diary, not a database\n" * 300, b"SQLite format 3\0" + b"\xff" * 4096])
def test_an_index_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "blocks.sqlite").write_bytes(content)
    with pytest.raises(StoreError):
        open_store(tmp_path)
    assert (tmp_path / "blocks.sqlite").read_bytes() == content


def test_a_folder_that_cannot_be_made_is_said_to_be_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnwritable):
        open_store(tmp_path / "file")
