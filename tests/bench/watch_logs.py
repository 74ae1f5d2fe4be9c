"""Does following keep up with a log that is being written, over kills? `python tests/bench/watch_logs.py --help`.

Writes a Claude Code log at a rate, renaming it now and then, while a process follows it that is killed (SIGKILL) so many
times; then compares memory with what was written. Prints one JSON object: bytes, seconds, how far behind at the end of
writing, turns, and the lines that are missing, doubled or have another text.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from watched_logs import LogWriter, check, start

_BURST_TURNS = 20


class Following:
    """The following process, its news read in a thread."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.process = start(home, folder, words=True)
        self.read_bytes = 0
        self.last: dict[str, Any] = {}
        self.began = threading.Event()
        self.idle = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self.last = json.loads(line)
            except ValueError:
                return  # killed in the middle of a line
            self.read_bytes += self.last["read_bytes"]
            self.began.set()
            if self.last["kind"] == "caught_up":
                self.idle.set()
            else:
                self.idle.clear()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


def main() -> int:
    """Write, follow, kill, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--rate", type=float, default=5, help="MB a second")
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--rename-every", type=float, default=25, help="MB")
    parser.add_argument("--result-words", type=int, default=300)
    parser.add_argument("--noise-words", type=int, default=900)
    asked = parser.parse_args()
    goal = int(asked.megabytes * 1e6)
    with tempfile.TemporaryDirectory(prefix="akashic-watch-") as name:
        folder, home = Path(name, "logs"), Path(name, "h")
        folder.mkdir()
        writer = LogWriter(folder / "s.jsonl", result_words=asked.result_words, noise_words=asked.noise_words)
        writer.path.touch()
        following = Following(home, folder)
        following.began.wait(120)
        dice = random.Random(1)
        kills = sorted(dice.random() * goal for _ in range(asked.restarts))
        started_s, written, renamed = time.perf_counter(), 0, 0
        while written < goal:
            written += writer.write(_BURST_TURNS)
            if written // (asked.rename_every * 1e6) > renamed:
                renamed += 1
                writer.rename()
            if kills and written >= kills[0]:
                kills.pop(0)
                following.kill()
                following = Following(home, folder)
            # The rate is what is measured against, so this waits for a time.
            time.sleep(max(0.0, started_s + written / (asked.rate * 1e6) - time.perf_counter()))
        written_s = time.perf_counter() - started_s
        following.idle.clear()
        while not (following.idle.wait(600) and following.last.get("kind") == "caught_up"):
            if following.process.poll() is not None:
                raise SystemExit("the following process ended")
        followed_s = time.perf_counter() - started_s
        following.kill()
        kept = check(home, writer.expected)
        result = {
            "written_bytes": written,
            "written_s": round(written_s, 1),
            "caught_up_after_s": round(followed_s - written_s, 1),
            "restarts": asked.restarts,
            "renamed": renamed,
            "messages": len(writer.expected),
            "turns": kept.turns,
            "missing": len(kept.missing),
            "twice": len(kept.twice),
            "other": len(kept.other),
        }
        print(json.dumps(result))
        return 0 if not (kept.missing or kept.twice or kept.other) else 1


if __name__ == "__main__":
    sys.exit(main())
