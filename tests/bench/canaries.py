"""Let 64 clients with a secret each live on few sequences, with random cancels and restarts, for some minutes.

    python tests/bench/canaries.py [--minutes 10] [--seed 1] [--clients 64]

Every second world is a daemon of its own process, which is killed or told to stop in the middle, again and again, with its
clients asking over HTTP. Prints how often things happened. The first word that reaches another client ends it with an error and the seed.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run worlds, each in a home of its own, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=64)
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    spec = importlib.util.spec_from_file_location("akashic_canaries", TESTS / "canaries.py")
    assert spec is not None
    assert spec.loader is not None
    canaries = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(canaries)
    import canaries_killed

    ends_s, seed, heard = time.monotonic() + 60 * options.minutes, options.seed, Counter[str]()
    while time.monotonic() < ends_s:
        with tempfile.TemporaryDirectory(prefix="akc") as home:
            try:
                if seed % 2:
                    heard += canaries.run(Path(home), seed=seed, clients=options.clients, rounds=3, turns=3)
                else:
                    heard += canaries_killed.run(
                        Path(home), seed=seed, clients=options.clients // 2, lives=6, answers=150
                    )
            except BaseException:
                print(f"seed {seed}", file=sys.stderr)
                raise
        seed += 1
        print(f"{seed - options.seed} worlds: {dict(heard)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
