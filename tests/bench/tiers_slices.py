"""How long long work on the SSD tier keeps the mover from reading for a request: writing, evicting, compacting, verifying.

    PYTHONPATH=tests python tests/bench/tiers_slices.py [--large 150] [--large-bytes 3000000] [--small 12000] [--rounds 1]

A store with blocks of a real model's size, and many small ones, is filled, half of it deleted, compacted, verified and
emptied, as the mover does it. Between two slices of that a request's reads and the engine's exports are served; printed is
the longest slice of each kind of work, by the clock and in CPU time of the thread, and for how long another thread that
wants to run each millisecond had to wait for the interpreter. Ends with 1 where a slice took more CPU time than 50 ms or
the other thread waited for more than 50 ms beyond what it waits for beside nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from akashic_daemon.store.blocks.opening import open_block_store
from akashic_daemon.store.blocks.slices import is_full
from akashic_daemon.tiers.block import Block, block_key, to_label
from akashic_daemon.tiers.labels import check_labels
from akashic_daemon.tiers.ssd import Outgoing, SsdTier
from akashic_daemon.types import SystemClock

LIMIT_S = 0.05
FINGERPRINT = "bench"
SESSION_BLOCKS = 50


class Slices:
    """The longest time between two moments at which others may read."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a slice."""
        self._wall_s, self._cpu_s = time.monotonic(), time.thread_time()

    def start(self) -> None:
        """Begin to measure."""
        self.longest_s = self.longest_cpu_s = 0.0
        self.count = 0
        self.begin()

    def end(self) -> None:
        """End a slice, and begin the next."""
        self.count += 1
        self.longest_s = max(self.longest_s, time.monotonic() - self._wall_s)
        self.longest_cpu_s = max(self.longest_cpu_s, time.thread_time() - self._cpu_s)
        self.begin()


class Ticker:
    """Another thread, which wants to run each millisecond: how long it couldn't."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ends.is_set():
            asked_s = time.monotonic()
            time.sleep(0.001)
            self.longest_s = max(self.longest_s, time.monotonic() - asked_s - 0.001)

    @contextmanager
    def running(self) -> Iterator[Ticker]:
        """Run it meanwhile."""
        self._thread.start()
        try:
            yield self
        finally:
            self._ends.set()
            self._thread.join()


def session(number: int, size_bytes: int) -> list[Outgoing]:
    """Return the blocks of one session, each 128 tokens behind the one before."""
    out: list[Outgoing] = []
    parent: Block | None = None
    for at in range(SESSION_BLOCKS):
        tokens = array("i", [number * 1000 + at] * 128)
        key = block_key(FINGERPRINT, parent.key if parent else None, (), tokens)
        block = Block(key, parent, (), tokens, at * 128, at * 128)
        out.append(
            Outgoing(key, to_label(block), f"s{number}", at * 128, FINGERPRINT, memoryview(os.urandom(size_bytes)))
        )
        parent = block
    return out


def batches(blocks: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """Yield them as the mover writes them."""
    batch: list[Outgoing] = []
    size_bytes = 0
    for block in blocks:
        batch.append(block)
        size_bytes += len(block.payload)
        if is_full(len(batch), size_bytes):
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def measure(name: str, slices: Slices, work: Callable[[], object], idle_s: float) -> bool:
    """Do some work, print its longest slice, and return whether that was short enough."""
    ticker = Ticker()
    slices.start()
    started_s = time.monotonic()
    with ticker.running():
        work()
    slices.end()
    print(
        f"{name:<28} {time.monotonic() - started_s:7.2f} s in {slices.count:5d} slices; longest {slices.longest_s * 1e3:7.1f} ms, "
        f"{slices.longest_cpu_s * 1e3:6.1f} ms CPU; another thread waited {ticker.longest_s * 1e3:6.1f} ms",
        flush=True,
    )
    return slices.longest_cpu_s <= LIMIT_S and ticker.longest_s <= LIMIT_S + idle_s


def run(options: argparse.Namespace, folder: Path) -> int:
    """Fill, thin out, compact, verify and empty a store."""
    idle = Ticker()
    with idle.running():
        time.sleep(1)
    print(f"beside nothing another thread waits {idle.longest_s * 1e3:.1f} ms")
    sizes = [options.large_bytes] * (options.large // SESSION_BLOCKS) + [5000] * (options.small // SESSION_BLOCKS)
    total_bytes = SESSION_BLOCKS * sum(sizes)
    store = open_block_store(folder, budget_bytes=3 * total_bytes + (1 << 30), clock=SystemClock())
    tier, slices, is_well = SsdTier(store, 1 << 50, SystemClock()), Slices(), True
    tier.pause_with(slices.end)

    def fill() -> None:
        for batch in batches(block for number, size_bytes in enumerate(sizes) for block in session(number, size_bytes)):
            slices.begin()
            tier.write(batch)
            slices.end()
        slices.begin()

    def forget() -> None:
        for number in range(0, len(sizes), 4):
            tier.forget_group(f"s{number}")
            slices.end()

    def thin_out() -> None:
        tier.set_aside(
            {entry.key: "bench" for number in range(1, len(sizes), 4) for entry in store.entries(f"s{number}")[25:]}
        )

    steps: list[tuple[str, Callable[[], object]]] = [
        ("write", fill),
        ("forget a fourth of the sessions", forget),
        ("compact", tier.prune),
        ("verify", tier.verify),
        ("verify labels", lambda: check_labels(tier, None)),
        ("evict an eighth", lambda: tier.prune(to_bytes=store.bytes_used * 7 // 8)),
        ("remove everything", lambda: tier.prune(everything=True)),
    ]
    for name, work in steps * options.rounds:
        is_well &= measure(name, slices, work, idle.longest_s)
    tier.close()
    print("no slice took longer than 50 ms of CPU" if is_well else "too long")
    return 0 if is_well else 1


def main() -> int:
    """Run it in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int, default=150)
    parser.add_argument("--large-bytes", type=int, default=3_000_000)
    parser.add_argument("--small", type=int, default=12_000)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ak-") as folder:
        return run(options, Path(folder) / "blocks")


if __name__ == "__main__":
    sys.exit(main())
