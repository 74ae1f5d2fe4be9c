"""An edited history, recognised: what the continued path shows is exactly the request, whatever was edited."""

from __future__ import annotations

import random
from array import array

import pytest

from akashic_daemon.program.active import active_cache
from akashic_daemon.program.align import Entry, Trace, align, entries_of, match_entries
from akashic_daemon.program.path import Path, Repos, Shift

OPENING = [9, 9]


def message(chance: random.Random) -> list[int]:
    return [8, chance.randrange(3), *[chance.randrange(6) for _ in range(chance.randint(1, 6))], 7]


def target_of(messages: list[list[int]]) -> list[Entry]:
    tokens = [*messages, OPENING]
    return [Entry(i, (), array("i", t)) for i, t in enumerate(tokens)]


def plain(messages: list[list[int]]) -> tuple[Path, array[int]]:
    path, owners = array("i"), array("i")
    for entry in target_of(messages):
        path.extend(entry.tokens)
        owners.extend([entry.owner] * len(entry.tokens))
    return Path(path), owners


def edited(chance: random.Random, messages: list[list[int]]) -> list[list[int]]:
    out = [list(m) for m in messages]
    for _ in range(chance.randint(0, 3)):
        at = chance.randrange(len(out))
        kind = chance.choice(("remove", "shorten", "replace", "lengthen", "insert"))
        if kind == "remove" and len(out) > 1:
            del out[at]
        elif kind == "shorten" and len(out[at]) > 3:
            del out[at][2 : chance.randint(3, len(out[at]) - 1)]
        elif kind == "replace":
            out[at][2:-1] = [5, 5, 5][: chance.randint(1, 3)]
        elif kind == "lengthen":
            out[at][2:2] = [chance.randrange(6) for _ in range(chance.randint(1, 4))]
        elif kind == "insert":
            out.insert(at, message(chance))
    return out


@pytest.mark.parametrize("seed", range(60))
def test_the_continued_path_shows_exactly_the_request(seed: int) -> None:
    chance = random.Random(seed)
    messages = [message(chance) for _ in range(chance.randint(2, 6))]
    path, owners = plain(messages)
    kept = 0
    for _ in range(8):
        answer = [chance.randrange(6) for _ in range(chance.randint(0, 4))]
        traced = path.then(answer)
        trace = Trace(traced, entries_of(traced, owners + array("i", [len(messages)] * len(answer))), open_tail=True)
        real = chance.random() < 0.5
        messages = edited(chance, messages)
        messages += [[*OPENING, *(answer if real else [4]), 7], message(chance)]
        target = target_of(messages)
        found = align(trace, target, position_limit=chance.choice((None, 60)), reserve_tokens=4)
        if found is None:
            path, owners = plain(messages)
            continue
        shown = entries_of(found.path, found.owners)
        assert [(e.owner, e.tokens) for e in shown] == [(e.owner, e.tokens) for e in target]
        total = active_cache(found.path).tokens
        assert total == sum(len(e.tokens) for e in target), "something is visible that the request doesn't have"
        assert found.kept_tokens + found.computed_tokens == total
        assert found.path.tokens[-1] == target[-1].tokens[-1]
        kept += found.kept_tokens
        path, owners = found.path, found.owners
    assert kept


def test_a_history_that_only_grew_goes_on_without_operations() -> None:
    messages = [[8, 0, 1, 7], [8, 1, 2, 7]]
    path, owners = plain(messages)
    trace = Trace(path.then([3]), entries_of(path.then([3]), owners + array("i", [2])), open_tail=True)
    found = align(trace, target_of([*messages, [9, 9, 3, 7], [8, 1, 5, 7]]))
    assert found is not None
    assert found.path.ops == ()
    assert found.computed_tokens == 1 + 4 + 2
    assert found.edits == ()


def test_without_repos_an_edit_that_needs_room_is_not_taken() -> None:
    messages = [[8, 0, 1, 7], [8, 1, 2, 7], [8, 0, 3, 7]]
    path, owners = plain(messages)
    trace = Trace(path, entries_of(path, owners), open_tail=True)
    longer = [messages[0], [8, 1, 2, 2, 2, 7], messages[2]]
    assert align(trace, target_of(longer), may_move=False) is None
    assert align(trace, target_of(longer)) is not None


@pytest.mark.parametrize("seed", range(5))
def test_a_client_whose_placeholder_outgrows_short_results_moves_little_and_not_all_that_follows(seed: int) -> None:
    chance = random.Random(seed)
    placeholder = [8, 2, *[50 + i for i in range(7)], 7]
    messages: list[list[int]] = [[8, 0, *range(10, 60), 7]]
    results: list[int] = []
    path, owners = plain(messages)
    moved = turns_moved = 0
    for _ in range(60):
        trace = Trace(path, entries_of(path, owners), open_tail=True)
        length = chance.choice((2, 3, 4, 80))
        results.append(len(messages) + 1)
        messages += [
            [*OPENING, *[100 + chance.randrange(1000) for _ in range(20)], 7],
            [8, 2, *[100 + chance.randrange(1000) for _ in range(length)], 7],
        ]
        for old in results[:-4]:
            messages[old] = placeholder
        found = align(trace, target_of(messages))
        assert found is not None
        assert not any(isinstance(placed.op, Repos) for placed in found.path.ops)
        here = 0
        for number, (offset, op) in enumerate((placed.offset, placed.op) for placed in found.path.ops):
            if number >= len(path.ops) and isinstance(op, Shift):
                here += active_cache(Path(found.path.tokens[:offset], found.path.ops[:number])).moved_by(op)
        turns_moved += here > 0
        moved += here
        path, owners = found.path, found.owners
    assert turns_moved > 20
    assert moved / turns_moved < 120
    assert active_cache(path).tokens > 1500


@pytest.mark.parametrize("seed", range(30))
def test_pairs_ascend_and_are_equal_and_find_all_of_an_unedited_rest(seed: int) -> None:
    chance = random.Random(seed)
    a = [array("i", [chance.randrange(5)]) for _ in range(chance.randint(1, 30))]
    b = [x for x in a if chance.random() < 0.8] or a
    pairs = match_entries(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert pairs == sorted(set(pairs))
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert len(pairs) >= len(b) // 2
