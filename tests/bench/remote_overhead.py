"""What the daemon adds between a client and a remote server: to the first piece of an answer, and to each one.

    python tests/bench/remote_overhead.py [--pieces 200] [--pace-ms 5] [--rounds 9]

The server is a process of its own that writes into each piece when it was sent, at an even pace; the client asks it
directly and through a daemon in turn, and takes the time that a piece was under way. Medians over all rounds. Wanted:
at most 5 ms added to the first piece and 0.3 to each. `cpu_ms_per_piece` is the daemon's own time, its share of the
requests' beginnings and ends included: that one means something on a busy machine too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import httpx

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: int, pace_s: float) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    await reader.readexactly(length)
    writer.write(_HEAD)
    for _ in range(pieces):
        piece = {"choices": [{"index": 0, "delta": {"content": f"{time.monotonic_ns()} "}}]}
        writer.write(b"data: %b\n\n" % json.dumps(piece).encode())
        await writer.drain()
        await asyncio.sleep(pace_s)
    usage = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": pieces}}
    writer.write(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(usage).encode())
    await writer.drain()
    writer.close()


def upstream(port: Connection, pieces: int, pace_s: float) -> None:
    """Serve until killed; sends its port."""

    async def serve() -> None:
        server = await asyncio.start_server(lambda r, w: _answer(r, w, pieces, pace_s), "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


async def ask(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: str) -> tuple[float, list[float]]:
    """Return the milliseconds to the first piece, and those that each piece was under way."""
    reader, writer = stream
    body = json.dumps({
        "model": "far", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 4096,
    }).encode()  # fmt: skip
    started_ns = time.monotonic_ns()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    first_ms, lags = 0.0, []
    while line := await reader.readline():
        now_ns = time.monotonic_ns()
        if not line.startswith(b"data: {"):
            continue
        choices = json.loads(line[6:]).get("choices")
        text = choices[0]["delta"].get("content") if choices else None
        if text:
            lags.append((now_ns - int(text)) / 1e6)
            first_ms = first_ms or (now_ns - started_ns) / 1e6
    writer.close()
    return first_ms, lags


async def rounds(port: int, socket: Path, count: int) -> dict[str, dict[str, float]]:
    """Ask both ways in turn."""
    seen: dict[str, tuple[list[float], list[float]]] = {"direct": ([], []), "daemon": ([], [])}
    for number in range(count + 1):
        for name in seen:
            if name == "direct":
                stream = await asyncio.open_connection("127.0.0.1", port)
            else:
                stream = await asyncio.open_unix_connection(str(socket))
            first_ms, lags = await ask(stream, "/v1/chat/completions")
            if number:  # the first round warms both up
                seen[name][0].append(first_ms)
                seen[name][1].extend(lags[1:])
    return {
        name: {"first_ms": round(statistics.median(first), 2), "piece_ms": round(statistics.median(lags), 3)}
        for name, (first, lags) in seen.items()
    }


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pieces", type=int, default=200)
    parser.add_argument("--pace-ms", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(
        target=upstream, args=(theirs, options.pieces, options.pace_ms / 1000), daemon=True
    )
    server.start()
    port = ours.recv()
    home = Path(tempfile.mkdtemp(prefix="ak-"))
    env = {**os.environ, "AKASHIC_HOME": str(home), "AKASHIC_MEMORY_CHAT": "false"}
    daemon = subprocess.Popen([sys.executable, "-m", "akashic_daemon", "serve"], env=env, stderr=subprocess.DEVNULL)
    try:
        socket = home / "run" / "akashic.sock"
        _register(socket, port)
        before_s = _cpu_s(daemon.pid)
        out = asyncio.run(rounds(port, socket, options.rounds))
        spent_ms = (_cpu_s(daemon.pid) - before_s) * 1000
        out["daemon"]["cpu_ms_per_piece"] = round(spent_ms / (options.pieces * (options.rounds + 1)), 3)
        out["added"] = {key: round(out["daemon"][key] - out["direct"][key], 3) for key in ("first_ms", "piece_ms")}
        out["wanted"] = {"first_ms": 5.0, "piece_ms": 0.3}
        print(json.dumps(out, indent=1))
    finally:
        daemon.terminate()
        daemon.wait(15)
        server.kill()


def _cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _register(socket: Path, port: int) -> None:
    place = {"url": f"http://127.0.0.1:{port}/v1", "model": "m"}
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://akashic") as client:
        for _ in range(300):
            try:
                if client.get("/akashic/v1/status").json()["engine"]["state"] in ("ready", "failed"):
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        client.post("/akashic/v1/models", json={"remote": place, "name": "far"}).raise_for_status()


if __name__ == "__main__":
    main()
