"""A few hundred odd requests of every kind; `tests/bench/fuzz.py` sends them for as long as wanted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fuzz_client import Report, Target, run
from fuzz_daemon import fuzzed_daemon, knows_its_prompt, lost, problems_in_log
from fuzz_requests import make

REQUESTS = 200


def test_odd_requests_are_answered_or_refused_and_leave_nothing(home: Path) -> None:
    report = Report()
    daemon = fuzzed_daemon(home)
    with daemon:
        target = Target(daemon.port, daemon.headers["authorization"])
        asyncio.run(run(target, seed=1, numbers=range(REQUESTS), report=report))
        knows_its_prompt(daemon)
        status = daemon.end(120)
    assert report.failures == []
    assert problems_in_log(daemon) == []
    assert lost(daemon, status) == []
    assert report.counts["200"] > 20
    assert report.counts["400"] > 20


def test_a_request_is_made_of_its_number_alone() -> None:
    def heads(seed: int) -> list[bytes]:
        return [sent.head + sent.body for sent in (make(seed, n, "x", "h") for n in range(50))]

    assert heads(3) == heads(3)
    assert heads(3) != heads(4)


def test_a_leak_is_told(home: Path) -> None:
    """The check of the end must fail when something stays: here a client that doesn't go while the daemon ends."""
    daemon = fuzzed_daemon(home, "--leak-limit=0.2")

    async def stay() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        auth = daemon.headers["authorization"]
        head = f"GET /akashic/v1/stats/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {auth}\r\n\r\n"
        writer.write(head.encode())
        await reader.readuntil(b'"at_s"')
        status = await asyncio.to_thread(daemon.end, 120)
        writer.close()
        return status

    with daemon:
        status = asyncio.run(stay())
    assert "stats/stream" in lost(daemon, status)[0]
