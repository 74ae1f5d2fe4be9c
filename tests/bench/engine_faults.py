"""Every N-th call to the engine fails in turn: requests end well or by an error, answers are exact, and nothing is left.

    PYTHONPATH=tests python tests/bench/engine_faults.py [--mode once|for-good|bug] [--first 1] [--last N] [--step 1]

The run is that of `tests/faulty_engine.py`: four sessions at once on the fake engine with edits, cancels, preemption, parking,
hints and compaction, in one thread, so that the same N is the same call each time; with all tiers for odd N, with RAM alone
for even ones. Afterwards the engine is well again, and every session goes on. An undisturbed run makes about 530 calls; all of
them take about 10 minutes of CPU in each mode. It prints how many requests ended by an error for which call, and ends with 1
and the calls where something was wrong.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from faulty_engine import fail_and_check

MODES = {"once": {}, "for-good": {"stays_broken": True}, "bug": {"is_bug": True}}


def main() -> int:
    """Try the calls and print figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=sorted(MODES), default="once")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int, default=1 << 30)
    parser.add_argument("--step", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("akashic").setLevel(logging.CRITICAL)  # each failure is told there
    tried: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    wrong: list[int] = []
    for fail_at in range(options.first, options.last + 1, options.step):
        with tempfile.TemporaryDirectory(prefix="ake") as folder:
            try:
                faults, errors = fail_and_check(
                    Path(folder) / "store" if fail_at % 2 else None, fail_at, **MODES[options.mode]
                )
            except Exception:  # noqa: BLE001  # whatever goes wrong is what is looked for
                print(f"call {fail_at}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
                wrong.append(fail_at)
                continue
        if not faults.failed:
            break  # the run makes no more calls
        first = next(iter(faults.failed))
        tried[first] += 1
        ended[first] += len(errors)
    print(
        f"{options.mode}: calls failed in turn, by kind: {dict(tried)}; requests that ended by an error: {dict(ended)}"
    )
    print(f"wrong: {wrong}" if wrong else "nothing wrong")
    return 1 if wrong or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
