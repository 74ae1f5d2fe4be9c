"""Every N-th I/O of a short busy run fails in turn: what is served stays right, the daemon goes on, the store opens whole.

    PYTHONPATH=tests python tests/bench/tiers_faults.py [--stays-broken] [--first 1] [--last N] [--step 1]

The run is that of `tests/busy_daemon.py`: three sessions on the fake engine, with parking, eviction, removals and
compaction, in one thread, so that the same N is the same call each time. Calls are those to the extents (create, open,
write, read, sync, truncate, unlink) and the index's statements and commits, opening the store included. After each run the
disk is well again: every session goes on, in this daemon and in the next one, and each answer is compared with the naive
twin. Ends with 1 and names the calls where something was wrong.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from busy_daemon import fail_and_check


def main() -> int:
    """Try all calls and print figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stays-broken", action="store_true", help="all later calls fail too")
    parser.add_argument("--last", type=int, default=1 << 30)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--turns", type=int, default=16)
    options = parser.parse_args()
    logging.getLogger("akashic").setLevel(logging.CRITICAL)  # each failure is told there
    kinds: Counter[str] = Counter()
    wrong: list[int] = []
    runs, calls, started_s = 0, 0, time.monotonic()
    for fail_at in itertools.count(options.first, options.step):
        if fail_at > options.last:
            break
        with tempfile.TemporaryDirectory(prefix="akf") as folder:
            try:
                disk = fail_and_check(
                    Path(folder) / "store", fail_at, stays_broken=options.stays_broken, turns=options.turns
                )
            except Exception:  # noqa: BLE001  # whatever goes wrong is what is looked for
                traceback.print_exc()
                wrong.append(fail_at)
                continue
        if not disk.failed:
            calls = disk.total
            break
        kinds += disk.kinds
        runs += 1
        if runs % 100 == 0:
            print(f"{runs} runs in {time.monotonic() - started_s:.0f} s, {len(wrong)} wrong", flush=True)
    print(f"the run makes {calls or 'more'} calls; {runs} failed in turn, by kind: {dict(sorted(kinds.items()))}")
    print(f"wrong: {wrong}" if wrong else "nothing wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
