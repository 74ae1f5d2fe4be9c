"""How long 10,000 messages take to be refused with counts, in each API, by a daemon on the default model.

    python tests/bench/many_messages.py [--messages 10000] [--rounds 3]

Prints one JSON object: seconds to the answer, the daemon's CPU seconds for it, and how much larger it has become. The exit
status is 1 when one isn't a 400 with counts, or takes longer than 3 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemon_process import DaemonProcess

MOST_S = 3.0
REFUSED = 400
_TICKS = os.sysconf("SC_CLK_TCK")


def bodies(count: int, round_: int) -> dict[str, dict[str, Any]]:
    """Return a body of so many messages for each API; no two rounds have a message in common."""
    said = [
        {"role": ("user", "assistant")[n % 2], "content": f"message {n} of round {round_} says this and that"}
        for n in range(count)
    ]
    return {
        "/v1/chat/completions": {"messages": said},
        "/v1/messages": {"messages": said, "max_tokens": 10},
        "/v1/responses": {"input": said, "store": False},
    }


def about(pid: int) -> tuple[float, float]:
    """Return a process's CPU seconds and resident MiB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return (int(fields[11]) + int(fields[12])) / _TICKS, resident / 2**20


def refused(client: httpx.Client, path: str, body: bytes) -> tuple[float, str | None]:
    """Send it; return how long that took, and what is wrong with the answer."""
    began_s = time.perf_counter()
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    took_s = time.perf_counter() - began_s
    error = answer.json().get("error", {})
    has_counts = "n_ctx" in error and error.get("n_prompt_tokens", 0) > error["n_ctx"]
    return (
        took_s,
        None if answer.status_code == REFUSED and has_counts else f"{answer.status_code}: {answer.text[:300]}",
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    out: dict[str, Any] = {"messages": options.messages, "target": f"<= {MOST_S} s"}
    holds = True
    with tempfile.TemporaryDirectory(prefix="akm") as home:
        daemon = DaemonProcess(Path(home), real=True)
        with daemon, daemon.client(300) as client:
            client.post("/v1/completions", json={"prompt": "load", "max_tokens": 1}).raise_for_status()
            before = about(daemon.process.pid)
            taken: dict[str, list[float]] = {}
            for round_ in range(options.rounds):
                for path, body in bodies(options.messages, round_).items():
                    took_s, wrong = refused(client, path, json.dumps(body).encode())
                    taken.setdefault(path, []).append(took_s)
                    if wrong is not None:
                        holds, out[f"wrong {path}"] = False, wrong
            after = about(daemon.process.pid)
            requests = sum(map(len, taken.values()))
            out |= {f"seconds {path}": round(statistics.median(times), 2) for path, times in taken.items()}
            out["cpu_s_each"] = round((after[0] - before[0]) / requests, 2)
            out["grown_mib"] = round(after[1] - before[1], 1)
            holds = holds and max(statistics.median(times) for times in taken.values()) <= MOST_S
            daemon.end(20)
    print(json.dumps({**out, "holds": holds}, indent=1))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
