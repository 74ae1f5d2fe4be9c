"""Crashes of a busy daemon: power cuts that are simulated, and real kills; nothing wrong is ever served afterwards.

    PYTHONPATH=tests python tests/bench/tiers_kill.py [--cuts 300] [--kills 20]

Cuts: see `tests/power_cuts.py`; every image is opened, looked at for damage and served from. Kills: a daemon process on the
fake engine, of which three clients ask long and growing prompts, gets SIGKILL at a random moment; the next one goes on with
the same sessions. Each first answer after a start is compared with what an engine says that has seen nothing else. It
prints figures, and ends with 1 when something wrong was served or a store was not whole.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx

from akashic_daemon.paths import find_paths
from akashic_daemon.tiers.ssd import open_ssd
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SystemClock
from busy_daemon import cut_and_check
from fake_service import NEVER, fresh_answer, register

ENTRY = Path(__file__).resolve().parents[1] / "serve_fake.py"
ANSWER_TOKENS = 8
START_LIMIT_S = 600.0
"""Much, for a machine with other things to do: a daemon that ends is told at once."""
TEXT = "the quick brown fox jumps over the lazy dog while it rains in the valley; "
SETTINGS = """[cache]
ram_bytes = "1MB"
ssd_bytes = "4MB"
"""


def start(home: Path) -> subprocess.Popen[bytes]:
    """Start a daemon and wait until its model is loaded."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("AKASHIC_")}
    env |= {"AKASHIC_HOME": str(home), "PYTHONPATH": os.pathsep.join([str(ENTRY.parent), *sys.path])}
    with (home / "daemon.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, str(ENTRY)], env=env, stderr=log, stdout=log)
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with suppress(httpx.HTTPError), connect(home) as client:
            if client.get("/akashic/v1/status").json()["engine"]["state"] == "ready":
                return process
        time.sleep(0.02)
    process.kill()
    last = "\n".join((home / "daemon.log").read_text(errors="replace").splitlines()[-30:])
    raise SystemExit(f"the daemon didn't start, status {process.wait()}; its last words:\n{last}")


def connect(home: Path) -> httpx.Client:
    """Return a client of the daemon's socket."""
    transport = httpx.HTTPTransport(uds=str(home / "run" / "akashic.sock"))
    return httpx.Client(transport=transport, base_url="http://akashic", timeout=120)


class Session:
    """A conversation that grows, and begins anew when it is long."""

    def __init__(self, number: int) -> None:
        self.name = f"s{number}"
        self.chance = random.Random(number)
        self.messages: list[Message] = []
        self.asked: list[Message] = []

    def next_prompt(self) -> list[Message]:
        """Return the next turn's messages."""
        if sum(len(m.content) for m in self.messages) > 1600:
            self.messages = []
        words = f"{self.name} {self.chance.randrange(10**6)} " + TEXT * self.chance.randint(3, 9)
        self.asked = [*self.messages, Message(Role.USER, words)]
        return self.asked

    def ask(self, client: httpx.Client) -> tuple[str, dict[str, object]]:
        """Ask the next turn; return the answer and what the daemon says of reuse."""
        messages = [{"role": m.role.value, "content": m.content} for m in self.next_prompt()]
        body = {
            "model": "fake", "messages": messages, "max_tokens": ANSWER_TOKENS, "akashic": {"session": self.name},
        }  # fmt: skip
        response = client.post("/v1/chat/completions", json=body)
        response.raise_for_status()
        told = response.json()
        text = told["choices"][0]["message"]["content"]
        self.messages = [*self.asked, Message(Role.ASSISTANT, text)]
        return text, told["akashic"]


def real_kills(kills: int, counts: Counter[str]) -> None:
    """Kill a daemon under load again and again; count what was wrong."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="ak-") as folder:
        home = Path(folder)
        register(home, ["fake"])
        (home / "config.toml").write_text(SETTINGS)
        sessions = [Session(n) for n in range(3)]
        for number in range(kills + 1):
            process = start(home)
            try:
                with connect(home) as client:
                    for session in sessions:
                        check(session, client, counts)
                    counts["problems told"] += len(client.get("/akashic/v1/status").json()["warnings"])
                if number < kills:
                    load_until_killed(process, home, sessions, chance.uniform(0.3, 4.0))
                    counts["kills"] += 1
                    verify(home, counts)
                    print(dict(counts), flush=True)
            finally:
                process.kill() if number < kills else process.terminate()
                process.wait()


def check(session: Session, client: httpx.Client, counts: Counter[str]) -> None:
    """Hold a session's next answer to an engine that has seen nothing else."""
    text, reuse = session.ask(client)
    expected = fresh_answer(session.asked, ANSWER_TOKENS, end_every=NEVER)
    counts["checked answers"] += 1
    counts["WRONG ANSWERS"] += text != expected
    tiers = reuse["reused_by_tier"]
    assert isinstance(tiers, dict)
    counts["tokens from ssd"] += int(tiers.get("ssd", 0))
    counts["tokens computed"] += int(str(reuse["computed_tokens"]))


def load_until_killed(process: subprocess.Popen[bytes], home: Path, sessions: list[Session], after_s: float) -> None:
    """Let each session ask on until the daemon is killed."""

    def go_on(session: Session) -> None:
        with suppress(httpx.HTTPError, json.JSONDecodeError), connect(home) as client:
            while True:
                session.ask(client)

    threads = [threading.Thread(target=go_on, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for thread in threads:
        thread.join()


def verify(home: Path, counts: Counter[str]) -> None:
    """Open the stores as they were left, and look for damage."""
    paths = find_paths({"AKASHIC_HOME": str(home)})
    tier = open_ssd(paths.store_dir, 4_000_000, 1 << 40, SystemClock())
    counts["FINDINGS"] += len(tier.verify())
    counts["blocks found"] += tier.stats().records
    tier.close()
    database = sqlite3.connect(paths.database)
    counts["FINDINGS"] += database.execute("PRAGMA integrity_check").fetchone() != ("ok",)
    database.close()


def power_cuts(cuts: int, counts: Counter[str]) -> None:
    """Check so many images of power cuts; a wrong one raises."""
    seed = 100
    with tempfile.TemporaryDirectory(prefix="ak-") as folder:
        while counts["images"] < cuts:
            counts += cut_and_check(Path(folder) / str(seed), seed, 60, every=4, most=min(40, cuts - counts["images"]))
            seed += 1


def main() -> int:
    """Run both and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=300)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    if options.cuts:
        power_cuts(options.cuts, counts)
        print("power cuts:", dict(counts), flush=True)
    killed: Counter[str] = Counter()
    if options.kills:
        real_kills(options.kills, killed)
        print("kills:", dict(killed), flush=True)
    return 1 if killed["WRONG ANSWERS"] or killed["FINDINGS"] else 0


if __name__ == "__main__":
    sys.exit(main())
