"""Random paths for property tests: tokens with Drops, Repos, Replaces and tail drops in any legal order."""

from __future__ import annotations

import random

from akashic_daemon.program.active import ActiveCache
from akashic_daemon.program.path import Drop, Insert, Path, PathBuilder, Repos
from akashic_daemon.program.ranges import normal


def random_path(chance: random.Random, *, steps: int = 8, vocabulary: int = 4, longest: int = 6) -> Path:
    """Return a legal path that ends in a token; small vocabularies make prefixes meet."""
    builder, state = PathBuilder(), ActiveCache()

    def append(count: int) -> None:
        nonlocal state
        builder.append([chance.randrange(vocabulary) for _ in range(count)])
        state = state.append(count)

    def apply(op: Drop | Repos | Insert) -> None:
        nonlocal state
        builder.apply(op)
        state = state.apply(op)

    append(chance.randint(1, longest))
    for _ in range(steps):
        kind = chance.choice(("append", "append", "drop", "tail", "repos", "replace", "replace_longer"))
        if kind == "append":
            append(chance.randint(1, longest))
        elif kind == "repos":
            apply(Repos())
        elif state.tokens > 1:
            start = chance.randrange(1, state.next_index)
            end = state.next_index if kind == "tail" else min(state.next_index, start + chance.randint(1, longest))
            place = min(
                (s.position + max(0, start - s.first) for s in state.spans if s.indices[1] > start and s.first < end),
                default=None,
            )
            apply(Drop(normal([(start, end)])))
            if kind.startswith("replace") and place is not None:
                count = chance.randint(1, longest)
                room = state.room_at(place)
                if room is not None and count > room:
                    if kind == "replace":
                        count = room
                    else:
                        apply(Repos(place, count))
                        place = sum(s.length for s in state.spans if s.position < place)
                        place = _hole(state, count)
                if count:
                    apply(Insert(place, count))
                    append(count)
    if builder.ops and builder.ops[-1].offset == len(builder.tokens):
        append(1)
    return builder.build()


def _hole(state: ActiveCache, count: int) -> int:
    at = 0
    for span in state.spans:
        if span.position - at >= count:
            return at
        at = span.end
    return at
