"""Ten thousand random operations on the tiers: answers stay the twin's, counters don't drift, nothing leaks.

    PYTHONPATH=tests python tests/bench/tiers_schedule.py [--acts 10000] [--seeds 3] [--first 0]

See `tests/random_schedule.py`. It prints what happened, and raises at the first thing that is wrong. 10,000 acts take about two
minutes of CPU.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from random_schedule import run_schedule


def main() -> int:
    """Run the seeds and print figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acts", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("akashic").setLevel(logging.ERROR)
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory(prefix="aks") as folder:
            counts = run_schedule(seed, Path(folder) / "store", options.acts)
        print(f"seed {seed}, {options.acts} acts: {dict(sorted(counts.items()))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
