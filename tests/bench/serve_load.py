"""What running streams notice of a long prefill, and how long clients wait for their turn, on a real model.

    python tests/bench/serve_load.py streams [--streams 3] [--prefill 6000] [--seconds 20]
    python tests/bench/serve_load.py clients [--clients 64] [--running 4]

Runs the service in this process, in a home of its own, on the default model. Prints one JSON object; the exit status is 1
when a bound doesn't hold: inter-token p95 beside a prefill <= 2.5 x without, the longest wait <= 3 x the mean.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from akashic_daemon.config import load
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.paths import find_paths
from akashic_daemon.schedule.events import Finished, GenerationInput, Started, TextDelta
from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import Message, Role

GREEDY = SamplingParams(temperature=0.0)
WORDS = "The harbour master wrote down every ship that came in, its cargo and where it had been. "
MOST_SLOWDOWN, MOST_WAIT = 2.5, 3.0


@asynccontextmanager
async def service(**flags: object) -> AsyncIterator[Service]:
    """Run a service in a temporary home."""
    with tempfile.TemporaryDirectory(prefix="akl") as home:
        paths = find_paths({"AKASHIC_HOME": home})
        paths.store_dir.mkdir(parents=True, mode=0o700)
        named = {name.replace("__", "."): value for name, value in flags.items()}
        running = Service(load(Path(home) / "config.toml", env={}, flags=named), paths)
        await running.start()
        try:
            yield running
        finally:
            await running.stop()


def text(prompt: str, tokens: int, session: str | None = None) -> GenerationInput:
    """Return a request of bare text that goes on for `tokens`."""
    return GenerationInput(text=prompt, sampling=GREEDY, max_tokens=tokens, session=session)


def percentile(samples: list[float], share: float) -> float:
    """Return a percentile, 0 without samples."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


async def streams(count: int, prefill: int, seconds: float) -> tuple[dict[str, float | str], bool]:
    """Compare the gaps between tokens with and without a long prefill beside them."""
    gaps: list[tuple[float, float]] = []
    async with service() as running:
        window = 8192

        async def stream(number: int) -> None:
            last_s, round_ = 0.0, 0
            while True:
                round_ += 1
                async with aclosing(running.generate(text(f"{number} {round_} {WORDS}", 1500))) as events:
                    last_s = 0.0
                    async for event in events:
                        if isinstance(event, TextDelta):
                            now_s = time.monotonic()
                            if last_s:
                                gaps.append((now_s, now_s - last_s))
                            last_s = now_s

        tasks = [asyncio.create_task(stream(n)) for n in range(count)]
        while len(gaps) < 20 * count:
            await asyncio.sleep(0.05)
        began_s = time.monotonic()
        await asyncio.sleep(seconds)
        prompt = WORDS * (prefill // 18)
        started_s = time.monotonic()
        async with aclosing(running.generate(text(prompt[: window * 4], 1))) as events:
            async for event in events:
                if isinstance(event, Finished):
                    tokens = event.reuse.computed_tokens
        ended_s = time.monotonic()
        await asyncio.sleep(seconds / 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    idle = [gap for at, gap in gaps if began_s <= at < started_s or at > ended_s + 0.2]
    busy = [gap for at, gap in gaps if started_s <= at <= ended_s]
    ratio = percentile(busy, 0.95) / percentile(idle, 0.95)
    figures: dict[str, float | str] = {
        "streams": count, "prefill_tokens": tokens, "prefill_s": ended_s - started_s,
        "idle_p50_s": percentile(idle, 0.5), "idle_p95_s": percentile(idle, 0.95),
        "busy_p50_s": percentile(busy, 0.5), "busy_p95_s": percentile(busy, 0.95), "busy_max_s": max(busy, default=0.0),
        "p95_ratio": ratio, "p95_ratio_target": f"<= {MOST_SLOWDOWN}",
    }  # fmt: skip
    return figures, ratio <= MOST_SLOWDOWN


async def clients(count: int, most: int) -> tuple[dict[str, float | str], bool]:
    """Let many clients come at once to few running sequences."""
    waits: list[float] = []
    async with service(schedule__max_running=most) as running:
        async for _ in running.generate(text("load", 1)):
            pass

        async def client(number: int) -> None:
            message = Message(Role.USER, f"Client {number}: say something about ship number {number}.")
            request = GenerationInput(messages=(message,), sampling=GREEDY, max_tokens=12, session=f"s{number}")
            asked_s = time.monotonic()
            waits.extend(
                [time.monotonic() - asked_s async for event in running.generate(request) if isinstance(event, Started)]
            )

        began_s = time.monotonic()
        await asyncio.gather(*(client(n) for n in range(count)))
        took_s = time.monotonic() - began_s
    mean_s = sum(waits) / len(waits)
    figures: dict[str, float | str] = {
        "clients": count, "running": most, "finished": len(waits), "took_s": took_s, "wait_mean_s": mean_s,
        "wait_max_s": max(waits), "wait_max_target": f"<= {MOST_WAIT} x the mean",
    }  # fmt: skip
    return figures, len(waits) == count and max(waits) <= MOST_WAIT * mean_s


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("streams", "clients"))
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--prefill", type=int, default=6000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--running", type=int, default=4)
    options = parser.parse_args()
    if options.what == "streams":
        figures, holds = asyncio.run(streams(options.streams, options.prefill, options.seconds))
    else:
        figures, holds = asyncio.run(clients(options.clients, options.running))
    print(json.dumps({**figures, "holds": holds}, indent=1))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
