"""Run many random cache programs on llama.cpp and print the worst error against the oracle.

PYTHONPATH=tests python tests/bench/programs.py --programs 2000
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from programs_driver import SHAPES, Programs
from tiny_gguf import write_tiny_gguf


def main() -> None:
    """Spread the programs over the shapes, fifty an engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--first-seed", type=int, default=100)
    wanted = parser.parse_args()
    done = moved = recovered = 0
    worst = 0.0
    seed = wanted.first_seed
    with tempfile.TemporaryDirectory() as folder:
        while done < wanted.programs:
            shape = list(SHAPES.values())[seed % len(SHAPES)]
            programs = Programs(write_tiny_gguf(Path(folder) / f"{seed}.gguf", seed=seed, shape=shape), seed)
            while programs.done < 50:
                programs.act()
            programs.engine.close()
            done, moved = done + programs.done, moved + programs.moved
            recovered, worst = recovered + programs.recovered, max(worst, programs.worst)
            seed += 1
    print(f"{done} programs, {moved} cells moved, {recovered} began with a recovery, worst relative error {worst:.2e}")


if __name__ == "__main__":
    main()
