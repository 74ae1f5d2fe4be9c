"""One batch, laid out for the forward pass: what each row is, where its KV goes and what it sees. Host side only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.torch_engine.views import Longs, Views, cells_of


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One item: `count` rows from `first` on, at consecutive positions from `start` on.

    views: what the sequence sees, its own new tokens last; a row sees all that stand before its own token, and that.
    """

    first: int
    count: int
    start: int
    views: Views


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """`tokens`, `cells` (page x page_tokens + slot) of each row; `wanted` are the rows whose logits are asked for."""

    tokens: Longs
    cells: Longs
    segments: tuple[Segment, ...]
    wanted: Longs

    @property
    def single(self) -> bool:
        """Whether each item is one token whose logits are wanted: the shape of decoding."""
        return len(self.tokens) == len(self.segments) == len(self.wanted)


def lay_out(batch: Sequence[BatchItem], seen: Sequence[Views], added: Sequence[Views], page_tokens: int) -> Step:
    """Return the step of a batch; `seen` is what each item's sequence sees with the new tokens, `added` these alone."""
    segments, wanted, first = [], [], 0
    for item, views in zip(batch, seen, strict=True):
        count = len(item.tokens)
        segments.append(Segment(first, count, item.start, views))
        if item.all_logits:
            wanted.append(np.arange(first, first + count))
        elif item.logits:
            wanted.append(np.array([first + count - 1]))
        first += count
    return Step(
        np.concatenate([np.asarray(item.tokens, np.int64) for item in batch]),
        np.concatenate([cells_of(views, page_tokens)[0] for views in added]),
        tuple(segments),
        np.concatenate(wanted).astype(np.int64) if wanted else np.empty(0, np.int64),
    )
