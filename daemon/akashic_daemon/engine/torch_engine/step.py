"""One batch, laid out for the forward pass: what each row is, where its KV goes and what it sees. Host side only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.torch_engine.kv import Growth
from akashic_daemon.engine.torch_engine.views import Longs, Views


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


def lay_out(batch: Sequence[BatchItem], growth: Growth, before: Sequence[tuple[BatchItem, Growth]] = ()) -> Step:
    """Return the step of a batch for which slots were taken, and of what was deferred before it, which is asked nothing."""
    segments: list[Segment] = []
    wanted: list[int] = []
    tokens: list[int] = []
    for item, views in (
        *((item, earlier.seen[0]) for item, earlier in before),
        *zip(batch, growth.seen, strict=True),
    ):
        first, count = len(tokens), len(item.tokens)
        segments.append(Segment(first, count, item.start, views))
        if item.all_logits:
            wanted += range(first, first + count)
        elif item.logits:
            wanted.append(first + count - 1)
        tokens.extend(item.tokens)
    cells = np.concatenate([*(earlier.cells for _, earlier in before), growth.cells])
    return Step(np.array(tokens, np.int64), cells, tuple(segments), np.array(wanted, np.int64))
