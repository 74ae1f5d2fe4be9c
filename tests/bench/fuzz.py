"""Odd requests of every kind against a daemon on the fake engine, for as long as wanted.

    python tests/bench/fuzz.py [--minutes 60] [--seed 1] [--only N]

It must neither crash nor hang, nor answer with a 5xx, nor keep anything of a request; and a known prompt is answered right
between and at the end. A failure is printed with its number: `--seed S --only N` sends that one alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemon_process import DaemonProcess
from fuzz_client import Report, Target, run
from fuzz_daemon import fuzzed_daemon, knows_its_prompt, lost, problems_in_log

_ROUND = 400


def main() -> int:
    """Fuzz until the time is over or something fails badly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--log", type=Path, help="where the log of the daemon is kept")
    options = parser.parse_args()
    report, ends_s, first = Report(), time.monotonic() + 60 * options.minutes, 0
    with tempfile.TemporaryDirectory(prefix="akf") as home:
        daemon = fuzzed_daemon(Path(home))
        with daemon:
            target = Target(daemon.port, daemon.headers["authorization"])
            if options.only is not None:
                asyncio.run(
                    run(target, seed=options.seed, numbers=range(options.only, options.only + 1), report=report)
                )
            while options.only is None and time.monotonic() < ends_s and daemon.process.poll() is None:
                numbers = range(first, first := first + _ROUND)
                asyncio.run(run(target, seed=options.seed, numbers=numbers, report=report))
                knows_its_prompt(daemon)
                _tell(first, report, daemon)
            knows_its_prompt(daemon)
            status = daemon.end(120)
        if options.log is not None:
            options.log.write_bytes(daemon.log.read_bytes())
        problems = [*report.failures, *problems_in_log(daemon), *lost(daemon, status)]
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems")
    return 1 if problems else 0


def _tell(sent: int, report: Report, daemon: DaemonProcess) -> None:
    status = Path(f"/proc/{daemon.process.pid}/status")
    resident = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmRSS")]
    print(
        f"{sent} requests, {int(resident[0]) // 1024} MiB resident: {dict(sorted(report.counts.items()))}", flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
