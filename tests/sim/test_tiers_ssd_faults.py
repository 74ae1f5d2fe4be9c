"""The SSD tier on disks that fail or fill up, and after kill -9: it says so, serves nothing wrong, loses nothing else."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from akashic_daemon.errors import AkashicError, StoreUnwritable
from akashic_daemon.store.blocks.record import Found, MissReason
from akashic_daemon.tiers.ssd import Outgoing, Refused, SsdTier, open_ssd, tier_problem
from block_stores import CountingFiles, FakeClock, payload
from disk_faults import largest_file

BUDGET = 400_000
KILLS = int(os.environ.get("TIER_KILLS", "4"))
STEP = int(os.environ.get("TIER_FAULT_STEP", "3"))


def outgoing(key: str, sequence: int, group: str) -> Outgoing:
    return Outgoing(key, b"label " + key.encode(), group, sequence, "fp", payload(key, [18_000, 0, 700][sequence % 3]))


def batch(group: str, first: int, count: int) -> list[Outgoing]:
    return [outgoing(f"{group}.{n}", n, group) for n in range(first, first + count)]


def exercise(tier: SsdTier, clock: FakeClock) -> set[str]:
    """Write more than fits, with reads, joins and forgetting between; return the keys that must be there."""
    believed: set[str] = set()
    for n in range(5):
        clock.now += 1
        group = f"g{n % 3}"
        believed |= set(tier.write(batch(group, 18 * n, 18), keep={"g0"}).keys)
        believed -= set(tier.evicted())
        for _ in tier.read(sorted(believed)[::3], fresh):
            pass
        tier.join("g0", sorted(believed)[:1])
        if n == 2:
            with suppress(AkashicError):
                believed -= set(tier.forget_group("g1").keys)
        if n == 3:
            with suppress(AkashicError):
                tier._store.delete(sorted(believed)[1:2])
            believed -= set(sorted(believed)[1:2])
            with suppress(AkashicError):
                tier.prune()
    return believed - set(tier.evicted())


def fresh(_key: str, size: int) -> memoryview:
    return memoryview(bytearray(size))


def expected(key: str) -> bytes:
    n = int(key.split(".")[1])
    return payload(key, [18_000, 0, 700][n % 3])


def contents(tier: SsdTier) -> dict[str, bytes]:
    keys = [one.key for one in tier.labels("fp")]
    out = {}
    for one in tier.read(keys, fresh):
        assert isinstance(one, Found), one
        out[one.entry.key] = bytes(one.payload)
    assert len(out) == len(keys)
    return out


@pytest.mark.parametrize("stays_broken", [False, True])
def test_whichever_io_fails_the_tier_goes_on_and_what_it_believes_to_have_is_right(
    tmp_path: Path, stays_broken: bool
) -> None:
    """Every third call; with TIER_FAULT_STEP=1 each."""
    fail_at = 1
    while True:
        folder = tmp_path / str(fail_at)
        clock, files = FakeClock(), CountingFiles()
        tier = open_ssd(folder, BUDGET, 1 << 40, clock, files)
        files.fail_at, files.stays_broken = fail_at, stays_broken
        believed = exercise(tier, clock)
        files.fail_at = None
        assert tier.stats().used_bytes <= BUDGET
        here = contents(tier)
        assert {key: here[key] for key in believed} == {key: expected(key) for key in believed}
        assert all(data == expected(key) for key, data in here.items())
        assert tier.write(batch("last", 0, 3), keep=()).refused is None  # the disk is well again
        assert tier.unavailable is None
        tier.close()
        again = open_ssd(folder, BUDGET, 1 << 40, clock)
        assert again.verify() == []
        assert contents(again).items() >= {f"last.{n}": expected(f"last.{n}") for n in range(3)}.items()
        again.close()
        if not files.failed:
            break
        fail_at += STEP
    assert fail_at > 60


def test_whichever_read_fails_is_a_miss_and_nothing_is_given_up_for_it(tmp_path: Path) -> None:
    files = CountingFiles()
    tier = open_ssd(tmp_path, BUDGET, 1 << 40, FakeClock(), files)
    tier.write(batch("a", 0, 12))
    keys = [f"a.{n}" for n in range(12)]
    for fail_at in itertools.count(1):
        files.fail_at, files.failed = fail_at, 0
        missed = [one for one in tier.read(keys, fresh) if not isinstance(one, Found)]
        files.fail_at = None
        assert {one.reason for one in missed} <= {MissReason.UNREADABLE}
        if not files.failed:
            break
        assert missed
    assert fail_at > 4
    assert tier.evicted() == []
    assert tier.unavailable is None
    assert contents(tier) == {key: expected(key) for key in keys}
    tier.close()


def test_on_a_full_disk_it_refuses_says_so_once_reads_on_and_works_again_with_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = open_ssd(tmp_path, BUDGET, 1 << 40, FakeClock())
    tier.write(batch("a", 0, 6))
    with largest_file(0):
        for _ in range(3):
            written = tier.write(batch("b", 0, 6))
            assert (written.stored, written.keys, written.refused) == (0, (), Refused.UNWRITABLE)
        tier.join("c", ["a.0"])
        assert isinstance(tier.unavailable, StoreUnwritable)
        assert isinstance(tier.stats().unavailable, StoreUnwritable)
        assert contents(tier) == {f"a.{n}": expected(f"a.{n}") for n in range(6)}
    assert [r.levelname for r in caplog.records if "SSD tier" in r.message] == ["WARNING"]
    assert tier.stats().refusals["unwritable"] == 18
    assert tier.write(batch("b", 0, 6)).refused is None
    assert tier.stats().unavailable is None
    tier.close()


def test_a_disk_that_is_full_from_the_start_still_serves_what_it_has(tmp_path: Path) -> None:
    clock = FakeClock()
    tier = open_ssd(tmp_path, BUDGET, 1 << 40, clock)
    tier.write(batch("a", 0, 6))
    tier.close()
    clock.now -= 1_000_000  # so that the daily window would begin anew
    tier = open_ssd(tmp_path, BUDGET, 1 << 40, clock, FullFiles())
    assert contents(tier) == {f"a.{n}": expected(f"a.{n}") for n in range(6)}
    assert tier.write(batch("b", 0, 6)).refused is Refused.UNWRITABLE
    assert contents(tier).keys() == {f"a.{n}" for n in range(6)}
    tier.close()


@pytest.mark.parametrize("is_new", [True, False])
def test_on_a_disk_that_takes_nothing_at_all_it_does_not_open_and_nothing_is_lost(tmp_path: Path, is_new: bool) -> None:
    if not is_new:
        tier = open_ssd(tmp_path, BUDGET, 1 << 40, FakeClock())
        tier.write(batch("a", 0, 6))
        tier.close()
    with largest_file(0), pytest.raises(StoreUnwritable) as raised:
        open_ssd(tmp_path, BUDGET, 1 << 40, FakeClock())
    assert "its disk can't be written" in tier_problem(raised.value)
    tier = open_ssd(tmp_path, BUDGET, 1 << 40, FakeClock())
    assert contents(tier) == ({} if is_new else {f"a.{n}": expected(f"a.{n}") for n in range(6)})
    tier.close()


class BadSector(CountingFiles):
    """A disk of which one place can't be read."""

    at: tuple[int, int] | None = None
    """Of which file (by inode) how many bytes from its beginning on can't be read."""

    def read(self, fd: int, parts: Sequence[bytearray | memoryview], offset: int) -> int:
        if self.at is not None and os.fstat(fd).st_ino == self.at[0] and offset < self.at[1]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(fd, parts, offset)


def small(key: str, sequence: int, group: str) -> Outgoing:
    """A block of which three fit an extent."""
    return Outgoing(key, b"label", group, sequence, "fp", payload(key, 7000))


def test_a_place_that_cannot_be_read_keeps_a_full_tier_from_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, clock = BadSector(), FakeClock()
    tier = open_ssd(tmp_path, BUDGET, 1 << 40, clock, files)
    tier.write([small(f"a{n}", n, "a") for n in range(3)])
    files.at = (tmp_path / "extents" / "0001.ext").stat().st_ino, 7000
    tier._store.delete(["a1"])
    for n in range(150):
        clock.now += 1
        tier.join("a", ["a0", "a2"])
        assert tier.write([small(f"b{n}", 0, f"b{n}")]).refused is None, n
        assert tier.stats().used_bytes <= BUDGET
    assert tier.stats().evictions["budget"] > 50
    assert len([r for r in caplog.records if "0001.ext" in r.message]) == 1
    assert [type(one) for one in tier.read(["a0", "a2"], fresh)].count(Found) == 1
    files.at = None
    assert {one.entry.key for one in tier.read(["a0", "a2"], fresh) if isinstance(one, Found)} == {"a0", "a2"}
    assert tier.prune().left == 0
    assert tier.verify() == []
    assert {one.entry.key for one in tier.read(["a0", "a2"], fresh) if isinstance(one, Found)} == {"a0", "a2"}
    tier.close()


class FullFiles(CountingFiles):
    """A disk that takes no payload."""

    def write(self, fd: int, parts: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
        raise OSError(28, "No space left on device")


_WRITER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:4]
from test_tiers_ssd_faults import BUDGET, FakeClock, batch, open_ssd
clock = FakeClock(float(sys.argv[4]))
tier = open_ssd(Path(sys.argv[1]), BUDGET, 1 << 40, clock)
n = int(sys.argv[5])
while True:
    clock.now += 1
    written = tier.write(batch(f"g{n % 5}", 6 * n, 6))
    gone = tier.evicted()
    print("wrote", n, *written.keys, flush=True)
    print("gone", n, *gone, flush=True)
    if n % 7 == 6:
        print("forgot", n, *tier.forget_group(f"g{n % 5}").keys, flush=True)
    if n % 11 == 10:
        tier.prune()
    n += 1
"""


def test_killed_at_any_moment_it_opens_verifies_and_has_what_it_said_it_wrote(tmp_path: Path) -> None:
    """Invariant 6, for the tier. More kills with TIER_KILLS."""
    told: set[str] = set()
    n, now = 0, 1000.0
    here = Path(__file__).parent
    for kill in range(1, KILLS + 1):
        words = [sys.executable, "-c", _WRITER, str(tmp_path), str(here), str(here.parent), str(now), str(n)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            lines = list(itertools.islice(writer.stdout, 10 + 9 * kill))
            writer.kill()  # while it goes on
            lines += writer.stdout.readlines()
        assert writer.returncode == -signal.SIGKILL
        for what, number, *keys in (line.split() for line in lines if line.endswith("\n")):
            n = max(n, int(number) + 1)
            told = told | set(keys) if what == "wrote" else told - set(keys)
        now += 1000
        tier = open_ssd(tmp_path, BUDGET, 1 << 40, FakeClock(now))
        assert tier.verify() == []
        assert tier.stats().used_bytes <= BUDGET
        have = contents(tier)
        assert all(data == expected(key) for key, data in have.items())
        # Only what it was evicting or forgetting when it died may be gone: the last step's.
        missing = told - have.keys()
        assert len({key.split(".")[0] for key in missing}) <= 2
        assert len(missing) < len(told)
        told = set(have)
        n += 1
        tier.close()
