"""The block store on disks that fail: each call in turn, for once or for ever, and with the process dying there."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from akashic_daemon.errors import AkashicError, StoreUnwritable
from akashic_daemon.store.blocks.check import Kind, check
from akashic_daemon.store.blocks.compaction import compact
from akashic_daemon.store.blocks.record import Found, Miss, MissReason, RefusalReason
from akashic_daemon.store.blocks.store import BlockStore
from block_stores import CountingFiles, open_store, read_group, record
from disk_faults import largest_file

State = dict[str, list[tuple[str, bytes]]]
GROUPS = ("a", "b", "new")


class Died(BaseException):
    """The process is gone: nothing after it runs."""


class DyingFiles(CountingFiles):
    """Dies at call `fail_at`, in the middle of a write; nothing can be done after."""

    def _count(self, name: str) -> None:
        try:
            super()._count(name)
        except OSError:
            raise Died from None

    def write(self, fd, parts, offset):  # type: ignore[no-untyped-def]
        try:
            return super().write(fd, parts, offset)
        except Died:
            os.pwritev(fd, [parts[-1][: len(parts[-1]) // 2]], offset)
            raise


def fill(store: BlockStore) -> None:
    """Store two groups with something dead between."""
    store.put([record(f"a{i}", group="a", sequence=i, size_bytes=[5000, 90][i % 2]) for i in range(6)])
    store.put([record(f"b{i}", group="b", sequence=i) for i in range(4)])
    store.put([record("b.dead", group="b", sequence=9), record("a.dead", group="a", sequence=9)])
    store.delete(["a.dead", "b.dead", "a0"])


def state(store: BlockStore) -> State:
    """Return every group's records as they are read."""
    out: State = {}
    for group in GROUPS:
        with read_group(store, group) as reads:
            found = list(reads)
        assert all(isinstance(f, Found) for f in found), found
        out[group] = [(f.entry.key, bytes(f.payload)) for f in found if isinstance(f, Found)]
    return out


def put_new(store: BlockStore) -> None:
    put = store.put([record(f"n{i}", group="new", sequence=i, size_bytes=[7000, 50][i % 2]) for i in range(4)])
    if put.refusal is not None:
        assert put.refusal.reason is RefusalReason.UNWRITABLE
        assert store.unavailable is not None
        raise store.unavailable


def put_more(store: BlockStore) -> None:
    """Append to extents that hold records already."""
    more = [record(f"{g}.more{i}", group=g, sequence=20 + i) for i in range(2) for g in "ab"]
    if store.put(more).refusal is not None:
        assert store.unavailable is not None
        raise store.unavailable


def compact_all(store: BlockStore) -> None:
    compact(store)


def delete_group(store: BlockStore) -> None:
    store.delete_group("b")


def mend(store: BlockStore) -> None:
    check(store, fix=True)


OPERATIONS: dict[str, Callable[[BlockStore], None]] = {
    "put": put_new,
    "put more": put_more,
    "compact": compact_all,
    "delete": delete_group,
    "mend": mend,
}


def expected(folder: Path, operation: str) -> tuple[State, State]:
    store = open_store(folder)
    fill(store)
    before = state(store)
    OPERATIONS[operation](store)
    after = state(store)
    store.close()
    return before, after


@pytest.mark.parametrize("stays_broken", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_whichever_file_call_fails_the_store_holds_all_or_nothing_and_goes_on(
    tmp_path: Path, operation: str, stays_broken: bool
) -> None:
    before, after = expected(tmp_path / "whole", operation)
    for fail_at in itertools.count(1):
        folder = tmp_path / str(fail_at)
        files = CountingFiles(stays_broken=stays_broken)
        store = open_store(folder, files=files)
        fill(store)
        files.fail_at = fail_at
        with suppress(AkashicError):
            OPERATIONS[operation](store)
        files.fail_at = None
        assert state(store) in (before, after)
        # Where even cutting a half-written file fails, it is counted as if it had been written whole.
        assert store.bytes_used - on_disk(store) in (range(100_000) if stays_broken else (0,))
        kinds = {f.kind for f in check(store)}
        assert kinds <= {Kind.UNCOMMITTED_TAIL, Kind.UNKNOWN_FILE} if stays_broken else kinds == set()
        OPERATIONS[operation](store)  # the disk is well again
        assert state(store) == after
        store.close()
        again = open_store(folder)
        assert check(again) == []
        assert state(again) == after
        again.close()
        if not files.failed:
            break
    assert fail_at > (1 if operation == "delete" else 3)


def on_disk(store: BlockStore) -> int:
    inline = store.database.connection.execute("SELECT sum(size_bytes) FROM records WHERE extent_id IS NULL").fetchone()
    return sum(f.stat().st_size for f in store.extents.folder.iterdir()) + int(inline[0] or 0)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_wherever_the_process_dies_the_old_or_the_new_is_found_and_nothing_is_left_over(
    tmp_path: Path, operation: str
) -> None:
    before, after = expected(tmp_path / "whole", operation)
    for fail_at in itertools.count(1):
        folder = tmp_path / str(fail_at)
        files = DyingFiles(stays_broken=True)
        store = open_store(folder, files=files)
        fill(store)
        files.fail_at = fail_at
        with suppress(Died):
            OPERATIONS[operation](store)
        store.database.close()
        os.close(store._lock_fd)  # as the kernel does for the dead
        again = open_store(folder)
        assert check(again) == []
        assert state(again) in (before, after)
        assert again.bytes_used == on_disk(again)
        again.close()
        if not files.failed:
            break
    assert fail_at > (1 if operation == "delete" else 3)


def test_whichever_call_fails_while_opening_nothing_is_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    before = state(store)
    store.close()
    for fail_at in itertools.count(1):
        (tmp_path / "extents" / "0099.ext").write_bytes(b"left by a crash")
        with (tmp_path / "extents" / "0001.ext").open("ab") as file:
            file.write(b"torn")
        files = CountingFiles(fail_at)
        with suppress(StoreUnwritable):
            open_store(tmp_path, files=files).close()
        if not files.failed:
            break
    assert fail_at > 4
    again = open_store(tmp_path)
    assert check(again) == []
    assert state(again) == before
    again.close()


def test_whichever_read_fails_it_is_a_miss_that_names_it_and_nothing_is_given_up(tmp_path: Path) -> None:
    files = CountingFiles()
    store = open_store(tmp_path, files=files)
    fill(store)
    before = state(store)
    for fail_at in itertools.count(1):
        files.fail_at, files.failed = fail_at, 0
        found = [store.get(key) for key in ("a2", "b0", "a1")]
        with read_group(store, "b") as reads:
            found += list(reads)
        files.fail_at = None
        missed = [f for f in found if isinstance(f, Miss)]
        assert {f.reason for f in missed} <= {MissReason.UNREADABLE}
        assert bool(missed) == bool(files.failed)
        if not files.failed:
            break
    assert state(store) == before
    assert store.stats().quarantined_now == 0
    assert check(store) == []
    store.close()


@pytest.mark.parametrize("operation", ["put", "put more", "compact", "delete"])
def test_a_disk_that_fills_up_at_any_size_leaves_all_or_nothing(tmp_path: Path, operation: str) -> None:
    before, after = expected(tmp_path / "whole", operation)
    store = open_store(tmp_path / "a")
    fill(store)
    store.database.shrink()
    failures = 0
    for limit in itertools.count(0, 4096):
        with largest_file(limit):
            try:
                OPERATIONS[operation](store)
                failed = False
            except AkashicError:
                failed = True
        failures += failed
        assert state(store) in (before, after)
        assert {f.kind for f in check(store)} <= {Kind.UNCOMMITTED_TAIL}
        if not failed:
            break
    assert failures > 1
    assert state(store) == after
    store.close()
    again = open_store(tmp_path / "a")
    assert check(again) == []
    assert state(again) == after
    again.close()


def test_a_store_that_cannot_write_still_reads_and_says_that_it_is_unavailable(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    with largest_file(0):
        refusal = store.put([record("n", group="new")]).refusal
        assert refusal is not None
        assert refusal.reason is RefusalReason.UNWRITABLE
        assert isinstance(store.unavailable, StoreUnwritable)
        assert isinstance(store.get("b0"), Found)
    assert store.put([record("n", group="new")]).stored == 1
    assert store.unavailable is None
    store.close()


class LoggingFiles(CountingFiles):
    """Notes what is done, in order."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def _count(self, name: str) -> None:
        self.log.append(name)


def test_payloads_are_on_the_disk_before_the_index_names_them_and_go_after_it_does_not(tmp_path: Path) -> None:
    log: list[str] = []
    store = open_store(tmp_path, files=LoggingFiles(log))
    fill(store)
    store.database.connection.set_trace_callback(lambda sql: log.append(sql) if sql == "COMMIT" else None)
    log.clear()
    put_new(store)
    assert log.count("COMMIT") == 1
    assert log.index("write") < log.index("sync") < log.index("sync_folder") < log.index("COMMIT")
    assert not {"write", "sync", "unlink"} & set(log[log.index("COMMIT") :])
    log.clear()
    compact(store)
    moved = log[: log.index("unlink")]
    last = len(moved) - 1 - moved[::-1].index("COMMIT")
    assert {"write", "sync", "sync_folder"} <= set(moved[:last])
    assert not {"write", "sync"} & set(log[last:])
    store.close()
