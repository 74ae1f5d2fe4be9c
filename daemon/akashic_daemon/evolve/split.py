"""Which runs are learnt from, which watch for over-fitting, and which are only reported on."""

from __future__ import annotations

import random
from collections.abc import Sequence

from akashic_daemon.errors import TranscriptError
from akashic_daemon.fidelity.turns import Run

LEAST_RUNS = 3
_TRAIN_SHARE, _WATCH_SHARE = 0.45, 0.2


def split(runs: Sequence[Run], held_out: Sequence[Run], seed: int) -> dict[str, list[Run]]:
    """Return train, watch and held_out, no run in two of them. Raises TranscriptError when there are too few.

    Without held-out runs of their own, a third or so is taken by the seed; runs of one file may land apart.
    """
    order = sorted(runs, key=lambda run: run.name)
    random.Random(seed).shuffle(order)
    needed = LEAST_RUNS - 1 if held_out else LEAST_RUNS
    if len(order) < needed:
        raise TranscriptError(
            f"evolving on {len(order)} runs: at least {needed} with answers are needed", hint="name more transcripts"
        )
    watch = max(1, round(_WATCH_SHARE * len(order)))
    if held_out:
        return {"train": order[watch:], "watch": order[:watch], "held_out": list(held_out)}
    train = max(1, round(_TRAIN_SHARE * len(order)))
    train = min(train, len(order) - watch - 1)
    return {"train": order[:train], "watch": order[train : train + watch], "held_out": order[train + watch :]}
