"""What one snapshot of `akashic stats` costs the daemon in CPU time.

    python tests/bench/stats_cost.py [--snapshots 300]

On the fake engine, in under a minute.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from akashic_daemon.paths import find_paths
from fake_daemon import daemon, on_socket
from fake_service import register

ROUTES = ("stats", "sessions", "memory")


def main() -> None:
    """Fill a daemon's counters with requests, then ask for each route many times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=int, default=300, help="of each route")
    snapshots = parser.parse_args().snapshots
    with TemporaryDirectory(prefix="akc", dir="/tmp") as folder:
        register(Path(folder), ["fake"])
        with daemon(Path(folder)) as process, on_socket(find_paths({"AKASHIC_HOME": folder})) as client:
            for number in range(30):
                body = {"prompt": "hello " * 50, "max_tokens": 100}
                client.post(f"/akashic/v1/sessions/s{number % 10}/turn", json=body).raise_for_status()
            for route in ROUTES:
                began_s = cpu_s(process.pid)
                for _ in range(snapshots):
                    client.get(f"/akashic/v1/{route}").raise_for_status()
                each_ms = 1000 * (cpu_s(process.pid) - began_s) / snapshots
                print(f"{route}: {each_ms:.2f} ms of CPU; once a second {each_ms / 10:.2f} % of a core")


def cpu_s(process: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text("ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


if __name__ == "__main__":
    main()
