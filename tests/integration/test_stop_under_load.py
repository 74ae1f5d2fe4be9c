"""A daemon that is told to stop while many wait and few are answered."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx

from akashic_daemon.paths import find_paths
from fake_daemon import DEADLINE_S, daemon
from fake_service import register

CLIENTS = 64


async def stream(client: httpx.AsyncClient, number: int, first: asyncio.Event) -> str:
    """Take an answer that has no end until the daemon ends it; return what came last."""
    body = {"messages": [{"role": "user", "content": f"go on {number}"}], "stream": True}
    last = ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                first.set()
                last = line
    return last


def test_sigterm_ends_a_daemon_with_64_clients_within_ten_seconds_and_tells_each(home: Path) -> None:
    register(home, ["fake"])
    socket = str(find_paths({"AKASHIC_HOME": str(home)}).socket)

    async def run() -> list[str | BaseException]:
        transport = httpx.AsyncHTTPTransport(uds=socket, limits=httpx.Limits(max_connections=2 * CLIENTS))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=DEADLINE_S) as client:
            first = asyncio.Event()
            tasks = [asyncio.create_task(stream(client, n, first)) for n in range(CLIENTS)]
            await first.wait()
            while (await client.get("/akashic/v1/status")).json()["queued"] < CLIENTS - 32:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*tasks, return_exceptions=True)

    with daemon(home) as process:
        ends = asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
        assert process.wait(10) == 0
    told = [end for end in ends if isinstance(end, str) and '"cancelled"' in end]
    refused = [end for end in ends if isinstance(end, httpx.HTTPError) or end == ""]
    assert len(told) + len(refused) == CLIENTS, ends
    assert len(told) >= 16


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
KINDS: tuple[dict[str, object], ...] = (
    {"messages": [{"role": "user", "content": "go on"}], "stream": True},
    {"messages": [{"role": "user", "content": "go on"}]},
    {"messages": [{"role": "user", "content": "look"}], "tools": [TOOL], "tool_choice": "required"},
    {"messages": [{"role": "user", "content": "a long one " * 300}], "stream": True},
)


def test_sigterm_ends_streams_whole_answers_tool_calls_long_prompts_and_who_waits(home: Path) -> None:
    register(home, ["fake"])
    socket = str(find_paths({"AKASHIC_HOME": str(home)}).socket)

    async def ask(client: httpx.AsyncClient, number: int) -> int:
        kind = KINDS[number % len(KINDS)]
        response = await client.post("/v1/chat/completions", json={**kind, "akashic": {"session": f"s{number}"}})
        return 499 if '"cancelled"' in response.text else response.status_code

    async def run() -> list[int | BaseException]:
        transport = httpx.AsyncHTTPTransport(uds=socket, limits=httpx.Limits(max_connections=2 * CLIENTS))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=DEADLINE_S) as client:
            tasks = [asyncio.create_task(ask(client, n)) for n in range(24)]
            while not (status := (await client.get("/akashic/v1/status")).json())["queued"] or not status["running"]:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*tasks, return_exceptions=True)

    with daemon(home, "--set=schedule.max_running=4") as process:
        ends = asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
        assert process.wait(10) == 0
    cancelled = [end for end in ends if end in (499, 503)]
    cut = [end for end in ends if isinstance(end, httpx.HTTPError)]
    called = [end for number, end in enumerate(ends) if end == 200 and "tools" in KINDS[number % len(KINDS)]]
    assert len(cancelled) + len(cut) + len(called) == len(ends), ends  # a tool call may have been complete
    assert cancelled
