"""Every N-th I/O of a short busy run fails in turn: what is served stays right, the daemon goes on, the store opens whole.

    PYTHONPATH=tests python tests/bench/tiers_faults.py [--stays-broken] [--done FILE] [--processes 2] [--first 1] [--last N] [--step 1]

The run is that of `tests/busy_daemon.py`: three sessions on the fake engine, with parking, eviction, removals and
compaction, in one thread, so that the same N is the same call each time; with a RAM tier for even N, without for odd ones.
Calls are those to the extents (create, open, write, read, sync, truncate, unlink) and the index's statements and commits,
opening the store included. After each run the disk is well again: every session goes on, in this daemon and in the next
one, and each answer is compared with the naive twin. All of it takes about a quarter of an hour of CPU in each mode; with --done what was tried
is noted in a file and not tried again, so that it can be stopped and resumed; --first and --step make shards of it. Ends
with 1 and names the calls where something was wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from busy_daemon import fail_and_check

BEYOND = 1 << 30
"""A call that no run gets to, even: nothing fails."""


def attempt(fail_at: int, *, stays_broken: bool, turns: int) -> dict[str, Any]:
    """Let one call fail; return what became of it."""
    with tempfile.TemporaryDirectory(prefix="akf") as folder:
        try:
            disk = fail_and_check(Path(folder) / "store", fail_at, stays_broken=stays_broken, turns=turns)
        except Exception:  # noqa: BLE001  # whatever goes wrong is what is looked for
            return {"call": fail_at, "wrong": traceback.format_exc()}
    return {"call": fail_at, "kinds": dict(disk.kinds), "total": disk.total}


def calls_to_fail(options: argparse.Namespace) -> list[int]:
    """Return the calls that the undisturbed run makes, as far as they were asked for."""
    totals = [attempt(BEYOND + odd, stays_broken=False, turns=options.turns) for odd in (0, 1)]
    for total in totals:
        if "wrong" in total:
            raise SystemExit(f"the run fails although no call does:\n{total['wrong']}")
    print(f"the run makes {totals[0]['total']} calls with a RAM tier, {totals[1]['total']} without", flush=True)
    last = min(options.last, max(t["total"] for t in totals))
    return [n for n in range(options.first, last + 1, options.step) if n <= totals[n % 2]["total"]]


def already(file: Path | None, of: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return what an earlier run of the same mode noted."""
    if file is None or not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {line["call"]: line for line in lines if line["of"] == of}


def noted(results: Iterable[dict[str, Any]], file: Path | None, of: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Hand results on, and note each."""
    for result in results:
        if file is not None:
            with file.open("a") as out:
                out.write(json.dumps({**result, "of": of}) + "\n")
        yield result


def main() -> int:
    """Try all calls and print figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stays-broken", action="store_true", help="all later calls fail too")
    parser.add_argument("--done", type=Path, help="note what was tried in this file, and don't try it again")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--last", type=int, default=BEYOND)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--turns", type=int, default=16)
    options = parser.parse_args()
    logging.getLogger("akashic").setLevel(logging.CRITICAL)  # each failure is told there
    of = {"stays_broken": options.stays_broken, "turns": options.turns}
    done = already(options.done, of)
    calls = calls_to_fail(options)
    left = [n for n in calls if n not in done]
    started_s = time.monotonic()
    tried = {n: done[n] for n in calls if n in done}
    with multiprocessing.Pool(options.processes) as pool:
        for result in noted(pool.imap_unordered(partial(attempt, **of), left), options.done, of):
            tried[result["call"]] = result
            if "wrong" in result:
                print(f"call {result['call']}:\n{result['wrong']}", file=sys.stderr, flush=True)
            if len(tried) % 100 == 0:
                print(f"{len(tried)} of {len(calls)} calls, {time.monotonic() - started_s:.0f} s", flush=True)
    kinds = sum((Counter(t.get("kinds", {})) for t in tried.values()), Counter[str]())
    wrong = sorted(n for n, t in tried.items() if "wrong" in t)
    idle = sorted(n for n, t in tried.items() if "wrong" not in t and not t["kinds"])
    print(f"{len(tried)} calls failed in turn, by kind: {dict(sorted(kinds.items()))}")
    if idle:
        print(f"nothing failed at: {idle}")
    print(f"wrong: {wrong}" if wrong else "nothing wrong")
    return 1 if wrong or idle else 0


if __name__ == "__main__":
    sys.exit(main())
