"""Time between two tokens of a running stream while KV moves, against the same stream alone.

    PYTHONPATH=tests python tests/bench/move_p99.py [--where disk|engine] [--move 1GB] [--rounds 3] [--session-tokens 5000] [--model FILE]

disk: from SSD into RAM. A daemon of its own has two sessions on SSD and room for one in RAM, so that each of the two that is fetched puts the
other out: they are fetched in turns beside a stream until enough moved. Rounds alternate with rounds in which nothing
moves, as many tokens each. A stream is read byte by byte as it comes; the client shares the cores with the daemon.
engine: out of the engine into RAM, back, and both at once; see `engine_moves.py`. `--move` bytes move in each of these.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from itertools import pairwise
from pathlib import Path

from akashic_cli.bench.own_daemon import OwnDaemon
from akashic_cli.bench.request import measure
from akashic_cli.bench.synthetic import make_run
from akashic_cli.bench.transcripts import Edit
from akashic_daemon.config import parse_size
from akashic_daemon.protocol.tiers import TierReport
from bench.engine_moves import measure_kinds
from bench.move_figures import Figures

PROMPT = "Tell me a long story about a lighthouse, a storm and a lost dog."
NEVER_ENDS = {"0": -100.0, "2": -100.0}
SESSIONS = ("left", "right")


async def post(socket: Path, path: str, body: dict[str, object]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request over a connection of its own."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(data)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + data)
    await writer.drain()
    return reader, writer


class Stream:
    """A stream of tokens that goes on beside what is measured."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self.at_s: list[float] = []
        self.has_begun = asyncio.Event()
        self.wanted = 1 << 30

    async def read(self, tokens: int) -> None:
        """Read until there are `wanted` tokens; the daemon would send up to `tokens`."""
        body = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "stream": True, "logit_bias": NEVER_ENDS}
        reader, writer = await post(self._socket, "/v1/completions", body)
        try:
            while len(self.at_s) < self.wanted and (line := await reader.readline()):
                if line.startswith(b"data: {"):
                    self.at_s.append(time.perf_counter())
                    self.has_begun.set()
        finally:
            writer.close()


async def fetch(socket: Path, session: str) -> int:
    """Have a session brought from SSD into RAM; return the bytes that came."""
    reader, writer = await post(socket, f"/akashic/v1/sessions/{session}/prefetch", {})
    answer = await reader.read()
    writer.close()
    line = next(line for line in answer.splitlines() if line.startswith(b"{"))
    told = json.loads(line)
    if told.get("error") or "bytes_brought" not in told:
        raise SystemExit(f"fetching {session}: {told}")
    return int(told["bytes_brought"])


async def one_round(socket: Path, figures: Figures, move_bytes: int, tokens: int) -> int:
    """Stream beside `move_bytes` of moves, or `tokens` tokens where nothing moves; return how many tokens came."""
    stream = Stream(socket)
    if not move_bytes:
        stream.wanted = tokens
    reading = asyncio.create_task(stream.read(8000))
    await stream.has_begun.wait()
    begin, begun_s, moved, number = len(stream.at_s), time.perf_counter(), 0, 0
    while moved < move_bytes:
        came = await fetch(socket, SESSIONS[number % 2])
        if not came and number > 2:
            raise SystemExit("nothing moves: each session was in RAM already")
        moved, number = moved + came, number + 1
    if move_bytes:
        figures.moving_s += time.perf_counter() - begun_s
        figures.moved_bytes += moved
        stream.wanted = max(len(stream.at_s), begin + 2)
    await reading
    came_at = stream.at_s[begin:]
    figures.gaps_s += [after - before for before, after in pairwise(came_at)]
    return len(came_at)


def prepare(daemon: OwnDaemon, tokens: int) -> int:
    """Compute both sessions and have them on SSD; return the bytes of the larger one's KV."""
    target = daemon.target(named_sessions=True)
    sizes = []
    for number, session in enumerate(SESSIONS):
        before: TierReport = daemon.settle()
        messages = next(make_run(number, tokens, 1).requests(Edit("none")))
        with target.http() as http:
            measure(http, target, messages, session)
        sizes.append(daemon.settle().moves.demoted.bytes - before.moves.demoted.bytes)
    return max(sizes)


def from_disk(options: argparse.Namespace) -> dict[str, object]:
    """Measure moves from SSD into RAM."""
    idle, moving = Figures(), Figures()
    with OwnDaemon(options.work_dir, model=options.model) as daemon:
        daemon.start({})
        size_bytes = prepare(daemon, options.session_tokens)
        daemon.stop()
        # The arena's slots aren't filled whole: room for one session and a good part of what that wastes.
        daemon.start({"cache.ram_bytes": int(size_bytes * 1.3)})
        socket = daemon.client.socket
        for _ in range(options.rounds):
            tokens = asyncio.run(one_round(socket, moving, options.move // options.rounds, 0))
            asyncio.run(one_round(socket, idle, 0, tokens))
        daemon.stop()
    ratio = round(moving.p99_s / idle.p99_s, 3)
    return {"session_bytes": size_bytes, "idle": idle.told(), "moving": moving.told(), "p99_over_idle": ratio}


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", choices=("disk", "engine", "both"), default="both")
    parser.add_argument("--move", type=parse_size, default=10**9, help="bytes that move, over all rounds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--session-tokens", type=int, default=5000)
    parser.add_argument("--model", help="a model file (disk), or the name of a known model (engine)")
    parser.add_argument("--work-dir", type=Path)
    options = parser.parse_args()
    out: dict[str, object] = {"load": os.getloadavg()[0]}
    if options.where != "engine":
        out["disk"] = from_disk(options)
    if options.where != "disk":
        out["engine"] = asyncio.run(measure_kinds(options.model, options.session_tokens, options.move, options.rounds))
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
