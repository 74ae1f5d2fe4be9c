"""Random paths for property tests: tokens with Drops, Repos, Replaces and tail drops in any legal order; and how they go on."""

from __future__ import annotations

import random

from akashic_daemon.program.active import ActiveCache, active_cache, cut_at
from akashic_daemon.program.path import Drop, Insert, Op, Path, PathBuilder, Repos, Shift
from akashic_daemon.program.ranges import normal
from akashic_daemon.program.room import make_room


def random_path(chance: random.Random, *, steps: int = 8, vocabulary: int = 4, longest: int = 6) -> Path:
    """Return a legal path that ends in a token; small vocabularies make prefixes meet."""
    builder, state = PathBuilder(), ActiveCache()

    def append(count: int) -> None:
        nonlocal state
        builder.append([chance.randrange(vocabulary) for _ in range(count)])
        state = state.append(count)

    def apply(op: Op) -> None:
        nonlocal state
        builder.apply(op)
        state = state.apply(op)

    append(chance.randint(1, longest))
    for _ in range(steps):
        kind = chance.choice(("append", "append", "drop", "tail", "repos", "shift", "replace", "replace_longer"))
        if kind == "append":
            append(chance.randint(1, longest))
        elif kind == "repos":
            apply(Repos())
        elif kind == "shift" and state.spans:
            apply(random_shift(chance, state))
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
                    elif chance.random() < 0.5:
                        shift = make_room(state, place, count - room)
                        apply(shift)
                        place += min(0, shift.by)
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


def next_turn(
    chance: random.Random,
    path: Path,
    *,
    longest: int,
    drop: float = 0.0,
    drop_tokens: int = 12,
    insert: float = 0.0,
    repos: float = 0.0,
) -> Path:
    """Return a path that goes on by up to `longest` tokens.

    drop, repos: how probable it is that a Drop (of so many tokens, fewer at the end) and a Repos come before them.
    insert: how probable it is that the first of them stands where something was dropped; a Repos doesn't come then.
    """
    ops: list[Op] = []
    state = active_cache(path)
    if chance.random() < drop and state.tokens > 6:
        first = chance.randrange(1, state.next_index)
        ops.append(Drop(((first, min(state.next_index, first + drop_tokens)),)))
        place = next((s.position + first - s.first for s in state.spans if s.first <= first < s.indices[1]), None)
        if insert and place is not None and chance.random() < insert:
            ops.append(Insert(place, 1))
    if not (ops and isinstance(ops[-1], Insert)) and chance.random() < repos:
        ops.append(Repos())
    return path.then([chance.randrange(4) for _ in range(chance.randint(1, longest))], ops)


def random_shift(chance: random.Random, state: ActiveCache) -> Shift:
    """Return a legal shift, perhaps one of nothing, or by nothing."""
    start, end = sorted((chance.randrange(state.next_position + 1), chance.randrange(state.next_position + 2)))
    spans = list(cut_at(cut_at(state.spans, start), end))
    moved = [s for s in spans if start <= s.position < end]
    if not moved:
        return Shift(start, end, chance.randint(-3, 0))
    below = max((s.end for s in spans if s.end <= moved[0].position), default=0)
    above = min((s.position for s in spans if s.position >= end), default=moved[-1].end + 5)
    return Shift(start, end, chance.randint(below - moved[0].position, above - moved[-1].end))


def _hole(state: ActiveCache, count: int) -> int:
    at = 0
    for span in state.spans:
        if span.position - at >= count:
            return at
        at = span.end
    return at
