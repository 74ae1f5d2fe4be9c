"""How far the planner is off what the torch engine was measured at on a GPU, figure by figure.

PYTHONPATH=daemon:. python tests/bench/plan_gpu.py [--from out.json] [--machine h200]

out.json is what `tests/bench/torch_decode.py --json` wrote: random weights of Llama-3-8B's shape in bf16, one sequence. Without
it the figures of README are taken. The machine is the described one; with a file its bandwidth is the copy's of that run, the
one figure taken of it. Ends with 1 when a figure is off by more than the goal.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from akashic_daemon.planner.machines import Machine, described
from akashic_daemon.planner.published import TORCH_ENGINE_H200
from akashic_daemon.planner.roofline import Setup, decode_step, prefill
from akashic_daemon.planner.shapes import named

GOAL = 0.2
SHAPE = named("llama-3.1-8b")
SPARSE_BLOCKS = 32


def readme() -> dict[str, Any]:
    """Return README's figures in the form of the file."""
    found = {}
    for kilo, blocks, tokens_per_s in TORCH_ENGINE_H200:
        found[f"{'sparse' if blocks else 'dense'}_{kilo * 1024}"] = {"tokens_per_s": tokens_per_s}
    return found


def predictions(measured: dict[str, Any], machine: Machine) -> Iterator[tuple[str, float, float]]:
    """Yield each figure's name, what was measured and what the planner says, in tokens a second."""
    for name, value in measured.items():
        kind, _, rest = name.partition("_")
        if kind in ("dense", "sparse") and rest.isdigit():
            blocks = SPARSE_BLOCKS if kind == "sparse" else 0
            said = 1 / decode_step(SHAPE, machine, Setup(int(rest), sparse_blocks=blocks)).seconds
            yield f"decode at {int(rest):,}, {kind}", value["tokens_per_s"], said
        elif name.startswith("prefill_"):
            tokens = int(name.split("_")[1])
            yield f"prefill of {tokens:,}", value, tokens / prefill(SHAPE, machine, tokens, Setup(tokens)).seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="file", type=Path)
    parser.add_argument("--machine", default="h200")
    options = parser.parse_args()
    measured = readme() if options.file is None else json.loads(options.file.read_text("utf-8"))
    machine = described(options.machine)
    copied = measured.get("copy_bytes_per_s")
    if copied:
        machine = replace(machine, stream=copied, kv_stream=copied)
    print(f"{options.file or 'figures of README'}; {machine.name}, {machine.stream / 1e12:.2f} TB/s")
    rows = list(predictions(measured, machine))
    if not rows:
        raise SystemExit(
            f"{options.file} has no figure of decode or prefill: it must be what torch_decode.py --json wrote"
        )
    worst = 0.0
    for what, found, said in rows:
        error = said / found - 1
        worst = max(worst, abs(error))
        print(f"{what:28} measured {found:10,.1f}  planned {said:10,.1f}  {100 * error:+6.1f} %")
    print(f"worst {100 * worst:.1f} % (goal {100 * GOAL:.0f} %)")
    raise SystemExit(worst > GOAL)


if __name__ == "__main__":
    main()
