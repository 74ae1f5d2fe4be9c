"""Decode speed of the daemon against a bare llama_decode loop on the same library, alternating in one run.

    python tests/bench/decode.py [--streams 1 4 8] [--tokens 200] [--rounds 5] [--busy 0] [--tiny]

The bare loop has no server: numpy batch, llama.cpp's samplers, no logits in Python. The daemon is a process of its own,
reached over its Unix socket by streaming requests; its speed is tokens over the time from the first to the last token.
`overhead_ms` is what a token of a stream takes longer than in the bare loop, and bounds the HTTP layer's part of it; with
`--tiny` a random model of two layers answers, whose steps cost next to nothing, so that it is nearly all of a token's time.
`--busy N` keeps N cores busy with something else meanwhile, and compares with one idle-machine thread.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx

from akashic_daemon.engine.base import BatchItem, SamplingParams
from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions, embedded_model_path
from akashic_daemon.types import SequenceId
from tiny_smol import registered_tiny_smol

NEVER_ENDS = ((0, -100.0), (2, -100.0))
"""Both sides sample with these biases, so that no answer ends early and both pay for the same samplers."""
LEAST_RATIO, LEAST_RATIO_ALONE, MOST_OVERHEAD_MS = 0.90, 0.95, 1.0
PROMPT = "Tell me a long story about a lighthouse, a storm and a lost dog."


def bare(engine: LlamaCppEngine, streams: int, tokens: int) -> float:
    """Return tokens a second of a plain loop over `streams` sequences."""
    sequences = [SequenceId(i) for i in range(streams)]
    prompt = engine.tokenize(PROMPT, special=True)
    samplers = [engine.sampler(SamplingParams(temperature=0.0, logit_bias=NEVER_ENDS)) for _ in sequences]
    for sequence in sequences:
        engine.release(sequence)
    engine.decode([BatchItem(s, prompt, 0, True) for s in sequences])
    last = [sampler.sample(i) for i, sampler in enumerate(samplers)]
    started_s = time.perf_counter()
    for step in range(tokens):
        engine.decode([BatchItem(s, (last[i],), len(prompt) + step, True) for i, s in enumerate(sequences)])
        last = [sampler.sample(i) for i, sampler in enumerate(samplers)]
    passed_s = time.perf_counter() - started_s
    for sampler in samplers:
        sampler.close()
    return tokens * streams / passed_s


async def served(socket: Path, streams: int, tokens: int) -> float:
    """Return tokens a second over all streams of the daemon.

    The client shares the cores with what it measures, so it only looks for line ends: httpx would take twice the
    daemon's own time for each token.
    """
    done = await asyncio.gather(*(_one(socket, number, tokens) for number in range(streams)))
    return sum(n - 1 for _, _, n in done) / (max(e for _, e, _ in done) - max(f for f, _, _ in done))


async def _one(socket: Path, number: int, tokens: int) -> tuple[float, float, int]:
    body = json.dumps({
        "prompt": f"{number} {PROMPT}", "max_tokens": tokens, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "logit_bias": {str(t): b for t, b in NEVER_ENDS},
    }).encode()  # fmt: skip
    reader, writer = await asyncio.open_unix_connection(str(socket))
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    first_s, usage = 0.0, {}
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            first_s = first_s or time.perf_counter()
            if b'"usage"' in line:
                usage = json.loads(line[6:])["usage"]
    writer.close()
    return first_s, time.perf_counter(), usage["completion_tokens"]


def spin() -> None:
    """Keep one core busy."""
    while True:
        pass


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="a random small model instead of the default one")
    options = parser.parse_args()
    path = embedded_model_path()
    assert path is not None
    cores = len(os.sched_getaffinity(0))
    home = Path(tempfile.mkdtemp())
    env = {**os.environ, "AKASHIC_HOME": str(home)}
    if options.tiny:
        env["AKASHIC_MODEL_DEFAULT"] = name = registered_tiny_smol(home)
        path = home / f"{name}.gguf"
    daemon = subprocess.Popen([sys.executable, "-m", "akashic_daemon", "serve"], env=env, stderr=subprocess.DEVNULL)
    hogs: list[multiprocessing.Process] = []
    out: dict[str, object] = {"cores": cores, "tokens": options.tokens, "busy": options.busy}
    try:
        socket = home / "run" / "akashic.sock"
        asyncio.run(_ready(socket))
        threads = 1 if options.busy else 0
        engine = LlamaCppEngine(LlamaCppOptions("bare", path, kv_tokens=32768, cores=cores, threads=threads))
        for streams in options.streams:
            pairs = []
            for _ in range(options.rounds):
                alone = bare(engine, streams, options.tokens)
                hogs = [multiprocessing.Process(target=spin, daemon=True) for _ in range(options.busy)]
                for hog in hogs:
                    hog.start()
                pairs.append((alone, asyncio.run(served(socket, streams, options.tokens))))
                for hog in hogs:
                    hog.kill()
                    hog.join()
            out[f"streams_{streams}"] = _figures(streams, pairs, tiny=options.tiny)
        engine.close()
    finally:
        for hog in hogs:
            hog.kill()
        daemon.terminate()
        daemon.wait(15)
    print(json.dumps(out, indent=1))


def _figures(streams: int, pairs: list[tuple[float, float]], *, tiny: bool) -> dict[str, object]:
    """Return the medians of (bare, daemon) tokens a second, each beside its target; a tiny model has none for the ratio."""
    ratio = statistics.median(served / alone for alone, served in pairs)
    target = LEAST_RATIO_ALONE if streams == 1 else LEAST_RATIO
    overhead_ms = statistics.median(1000 * streams * (1 / served - 1 / alone) for alone, served in pairs)
    return {
        "bare_tok_s": round(statistics.median(alone for alone, _ in pairs), 1),
        "daemon_tok_s": round(statistics.median(served for _, served in pairs), 1),
        "ratio": round(ratio, 3),
        **({} if tiny else {"ratio_target": f">= {target}", "ratio_holds": ratio >= target}),
        "overhead_ms": round(overhead_ms, 3),
        "overhead_target": f"<= {MOST_OVERHEAD_MS} ms a token",
        "overhead_holds": overhead_ms <= MOST_OVERHEAD_MS,
    }


async def _ready(socket: Path) -> None:
    for _ in range(600):
        if socket.exists():
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(socket)), base_url="http://a") as c:
                try:
                    if (await c.get("/akashic/v1/status")).json()["engine"]["state"] == "ready":
                        return
                except httpx.TransportError:
                    pass
        await asyncio.sleep(0.1)
    raise SystemExit("the daemon did not become ready")


if __name__ == "__main__":
    main()
