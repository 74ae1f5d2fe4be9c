"""Cutting paths into blocks, and finding them again: by seed over random paths, and one test per field of a key."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import pytest

from akashic_daemon.cache.index import RadixIndex
from akashic_daemon.cache.keys import OpTable
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import StoreError
from akashic_daemon.program import oracle
from akashic_daemon.program.path import Drop, Insert, Op, Path, Repos, Shift
from akashic_daemon.tiers.arena import Slots
from akashic_daemon.tiers.block import Block, block_key, from_label, stretches, to_label
from akashic_daemon.tiers.catalogue import Catalogue, Loaded, stored_ranges
from akashic_daemon.tiers.exporter import Exporter, Trail
from akashic_daemon.tiers.mover import Mover
from akashic_daemon.types import BLOCK_TOKENS
from paths_strategy import random_path
from tiers_driver import BLOCK, small_blocks

FEWEST = 2
"""Tokens of a last block in `small_blocks`."""


class Cutter:
    """An exporter whose copies are never made: only what it cuts is looked at."""

    def __init__(self) -> None:
        engine = FakeEngine()
        self.catalogue = Catalogue("fp")
        self.index = RadixIndex(engine, cells_total=4096, sequences_total=4)
        self.exporter = Exporter(engine, self.index, self.catalogue, Mover(None), "as_computed")

    def cut(self, path: Path, chance: random.Random, borders: list[int] | None = None) -> Trail:
        """Cut a path as a request does that computes it piece by piece."""
        key = self.index.ops.key(path)
        trail = Trail("g", borders or [])
        self.exporter.follow(trail, key)
        computed = 0
        while computed < len(path):
            computed = min(len(path), computed + chance.randint(1, 20))
            self.exporter.cut(trail, key, ((0, len(path)),), computed, is_final=computed == len(path))
        return trail

    def chain(self, trail: Trail) -> list[Block]:
        """Return the blocks up to a trail's end."""
        out: list[Block] = []
        at = trail.tail
        while at is not None:
            out.append(at)
            at = at.parent
        return out[::-1]


@pytest.mark.parametrize("seed", range(60))
def test_blocks_are_a_paths_tokens_in_order_and_cross_neither_messages_nor_operations(seed: int) -> None:
    chance = random.Random(seed)
    path = random_path(chance, steps=10, longest=25)
    borders = sorted(chance.sample(range(1, len(path)), min(len(path) - 1, chance.randint(0, 6))))
    with small_blocks():
        cutter = Cutter()
        trail = cutter.cut(path, chance, borders)
    blocks = cutter.chain(trail)
    assert len(path) - trail.done < FEWEST
    tokens, ops, at = array("i"), [p.offset for p in path.ops], 0
    positions = [view.position for view in oracle.run(path).views]
    for block in blocks:
        assert block.first == at
        assert 1 <= len(block.tokens) <= BLOCK
        inside = range(block.first + 1, block.end)
        assert not [b for b in borders if b in inside], "a block crosses a message's border"
        assert not [o for o in ops if o in inside], "a block crosses an operation"
        assert positions[block.first : block.end] == list(range(block.position, block.position + len(block.tokens)))
        tokens.extend(block.tokens)
        at = block.end
    assert tokens == path.tokens[: trail.done]
    assert [op for b in blocks for op in b.ops] == [p.op for p in path.ops if p.offset <= trail.done][
        : sum(len(b.ops) for b in blocks)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_a_walk_finds_what_was_cut_and_of_another_path_only_what_both_begin_with(seed: int) -> None:
    chance = random.Random(seed)
    with small_blocks():
        cutter = Cutter()
        paths = [random_path(chance, steps=8, longest=25) for _ in range(3)]
        for old in list(paths):
            branch = old.prefix(chance.randint(1, len(old)))
            paths.append(old if _is_inserting(branch) else branch.then([chance.randrange(4) for _ in range(20)]))
        ends = [cutter.cut(path, chance).done for path in paths]
        table = cutter.index.ops
        for path, end in zip(paths, ends, strict=True):
            pieces = cutter.catalogue.walk(table.key(path), table)
            assert pieces[-1].indices[1] >= end
            _check_pieces(path, [(p.block, p.count) for p in pieces])
        for _ in range(6):
            other = random_path(chance, steps=8, longest=25)
            pieces = cutter.catalogue.walk(table.key(other), table)
            _check_pieces(other, [(p.block, p.count) for p in pieces])
            assert sum(p.count for p in pieces) >= max(
                _common(other, path, end) for path, end in zip(paths, ends, strict=True)
            )


def _is_inserting(path: Path) -> bool:
    from akashic_daemon.program.active import active_cache

    return bool(active_cache(path).inserting)


def _common(a: Path, b: Path, most: int) -> int:
    """Return how many tokens two paths begin with under the same operations."""
    table = OpTable()
    count = 0
    for x, y in zip(table.key(a), table.key(b), strict=False):
        if x != y:
            break
        count += x >= 0
    return min(count, most)


def _check_pieces(path: Path, pieces: list[tuple[Block, int]]) -> None:
    """Assert that pieces are a start of a path: its tokens, its operations, its positions; only the last in part."""
    positions = [view.position for view in oracle.run(path).views]
    at, parent = 0, None
    for number, (block, count) in enumerate(pieces):
        assert block.parent is parent
        assert block.first == at
        assert block.tokens[:count] == path.tokens[at : at + count]
        assert positions[at] == block.position
        assert block.ops == tuple(p.op for p in path.ops if p.offset == at)
        assert count == len(block.tokens) or number == len(pieces) - 1
        at, parent = at + count, block


def add(catalogue: Catalogue, parent: Block | None, tokens: str, *, stored: bool = True) -> Block:
    """Add a block of so many tokens behind its parent."""
    first = parent.end if parent is not None else 0
    block = catalogue.add(parent, (), array("i", list(tokens.encode())), first, first)
    block.slots = Slots((), len(tokens)) if stored else None
    return block


def walked(catalogue: Catalogue, text: str) -> list[tuple[str, int]]:
    """Walk along text; return each piece's tokens and how many of them."""
    pieces = catalogue.walk(array("i", list(text.encode())), OpTable())
    return [(bytes(list(p.block.tokens)).decode(), p.count) for p in pieces]


def test_a_block_that_matches_a_little_further_does_not_hide_the_chain_that_goes_on() -> None:
    catalogue = Catalogue("fp")
    whole = add(catalogue, None, "abcd")
    add(catalogue, None, "abcdeXXX")  # another request cut the same beginning elsewhere
    add(catalogue, whole, "efghijkl")
    assert walked(catalogue, "abcdefghijkl") == [("abcd", 4), ("efghijkl", 8)]


def test_of_two_chains_the_one_that_has_copies_is_taken() -> None:
    catalogue = Catalogue("fp")
    add(catalogue, add(catalogue, None, "abcd", stored=False), "efghij", stored=False)
    add(catalogue, add(catalogue, None, "ab"), "cdef")
    assert walked(catalogue, "abcdefghij") == [("ab", 2), ("cdef", 4)]


def test_a_chain_of_thousands_of_blocks_is_walked_to_its_end() -> None:
    catalogue = Catalogue("fp")
    at: Block | None = None
    for _ in range(3000):
        at = add(catalogue, at, "ab")
    assert len(catalogue.walk(array("i", list(b"ab" * 3000)), OpTable())) == 3000


def test_only_blocks_with_copies_are_stored_ranges() -> None:
    catalogue = Catalogue("fp")
    first = add(catalogue, None, "abcd")
    add(catalogue, add(catalogue, first, "efgh", stored=False), "ijkl")
    assert stored_ranges(catalogue.walk(array("i", list(b"abcdefghij")), OpTable())) == ((0, 4), (8, 10))


# -- keys and labels ---------------------------------------------------------------------------------------------

TOKENS = array("i", [1, 2, 3])
DROP = Drop(((0, 2),))
MANY_OPS: list[Op] = [
    *(Repos(), Repos(2, 0), Repos(0, 1), Repos(1, 2)),
    *(Insert(1, 2), Insert(2, 1), Insert(2, 2)),
    *(Shift(0, 2, 1), Shift(1, 2, 1), Shift(1, 3, 1), Shift(1, 2, 2), Shift(1, 2, -1)),
]

BASE: dict[str, object] = {"fingerprint": "fp", "parent": "kv1:a", "ops": (DROP,), "tokens": TOKENS}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("fingerprint", "fq"),
        ("fingerprint", ""),
        ("parent", "kv1:b"),
        ("parent", None),
        ("parent", ""),
        ("ops", ()),
        ("ops", (Drop(((0, 1),)),)),
        ("ops", (Drop(((0, 1), (1, 2))),)),
        ("ops", (DROP, DROP)),
        ("ops", (Repos(),)),
        ("ops", (Repos(0, 2),)),
        ("ops", (Insert(0, 2),)),
        ("ops", (Shift(0, 2, 1),)),
        ("tokens", array("i", [1, 2, 4])),
        ("tokens", array("i", [1, 2])),
        ("tokens", array("i", [1, 2, 3, 0])),
        ("tokens", array("i", [2, 1, 3])),
    ],
)
def test_every_field_takes_part_in_a_blocks_key(name: str, other: object) -> None:
    base = block_key(**BASE)  # type: ignore[arg-type]
    assert base == block_key(**BASE)  # type: ignore[arg-type]
    assert block_key(**{**BASE, name: other}) != base  # type: ignore[arg-type]


@pytest.mark.parametrize("op", MANY_OPS)
def test_every_field_of_an_operation_takes_part(op: Op) -> None:
    keys = {block_key("fp", None, (o,), TOKENS) for o in MANY_OPS}
    assert len(keys) == len(MANY_OPS)
    assert block_key("fp", None, (op,), TOKENS) in keys


@pytest.mark.parametrize("seed", range(30))
def test_labels_round_trip_and_a_reopened_catalogue_finds_the_same(seed: int) -> None:
    chance = random.Random(seed)
    with small_blocks():
        cutter = Cutter()
        paths = [random_path(chance, steps=10, longest=25) for _ in range(3)]
        for path in paths:
            cutter.cut(path, chance)
        blocks = cutter.catalogue.blocks()
        labels = [(b.key, to_label(b), 5) for b in blocks]
        for (key, label, _), block in zip(labels, blocks, strict=True):
            parent, read = from_label(key, label)
            assert parent == (block.parent.key if block.parent is not None else "")
            assert (read.ops, read.tokens, read.first, read.position) == (
                block.ops, block.tokens, block.first, block.position,
            )  # fmt: skip
        chance.shuffle(labels)
        again = Catalogue("fp")
        assert again.load(labels) == Loaded([], [])
        table = cutter.index.ops
        for path in paths:
            path_key = table.key(path)
            before, after = cutter.catalogue.walk(path_key, table), again.walk(path_key, table)
            assert [(p.block.key, p.count) for p in after] == [(p.block.key, p.count) for p in before]
            assert all(p.block.on_ssd and p.block.is_labelled for p in after)


def test_blocks_whose_parent_is_gone_are_told_and_never_found() -> None:
    catalogue = Catalogue("fp")
    first = add(catalogue, None, "abcd")
    second = add(catalogue, first, "efgh")
    third = add(catalogue, second, "ijkl")
    again = Catalogue("fp")
    lost = again.load([(b.key, to_label(b), 5) for b in (first, third)])
    assert lost == Loaded([], [third.key])
    assert walked(again, "abcdefghijkl") == [("abcd", 4)]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda label: b"",
        lambda label: label[:5],
        lambda label: b"\xff\xff" + label[2:],
        lambda label: label[:-1],
        lambda label: label + bytes(4 * BLOCK_TOKENS),
        lambda label: label[:2] + b"\xff\xff" + label[4:],
    ],
)
def test_a_label_that_is_none_is_an_error_that_names_its_block(spoil: object) -> None:
    catalogue = Catalogue("fp")
    block = catalogue.add(None, (DROP,), TOKENS, 0, 0)
    assert callable(spoil)
    with pytest.raises(StoreError, match=block.key):
        from_label(block.key, spoil(to_label(block)))


def test_a_label_under_another_key_is_left_out_with_what_leads_on_from_it() -> None:
    catalogue = Catalogue("fp")
    first = add(catalogue, None, "abcd")
    second = add(catalogue, first, "efgh")
    other = add(catalogue, None, "xxxx")
    again = Catalogue("fp")
    lost = again.load([(first.key, to_label(other), 5), (second.key, to_label(second), 5)])
    assert lost == Loaded([first.key], [second.key])
    assert len(again) == 0


def test_blocks_of_no_use_go_with_the_ancestors_that_were_kept_for_them() -> None:
    catalogue = Catalogue("fp")
    first = add(catalogue, None, "abcd", stored=False)
    second = add(catalogue, first, "efgh", stored=False)
    third = add(catalogue, second, "ijkl")
    catalogue.drop_empty(second)
    assert len(catalogue) == 3
    third.slots = None
    catalogue.drop_empty(third)
    assert len(catalogue) == 0
    assert walked(catalogue, "abcdefgh") == []


def test_a_child_of_a_block_that_went_meanwhile_brings_it_back_once() -> None:
    catalogue = Catalogue("fp")
    first = add(catalogue, None, "abcd", stored=False)
    catalogue.drop_empty(first)
    again = add(catalogue, None, "abcd", stored=False)
    assert again is not first
    child = add(catalogue, first, "efgh")
    assert child.parent is again
    assert walked(catalogue, "abcdefgh") == [("abcd", 4), ("efgh", 4)]
    assert len(catalogue) == 2


def test_a_pinned_copy_is_not_taken() -> None:
    catalogue = Catalogue("fp")
    block = add(catalogue, None, "abcd")
    catalogue.pin([block])
    assert catalogue.take_slots(block) is None
    catalogue.unpin([block])
    assert catalogue.take_slots(block) is not None
    assert not block.has_copy


def test_stretches_end_where_an_insertion_ends_and_say_where_they_stand() -> None:
    table = OpTable()
    path = Path(array("i", range(10)))
    path = replace(path, tokens=array("i", range(6))).then([6, 7, 8, 9], [Drop(((1, 4),)), Insert(1, 2)])
    found = [(s.ops, s.first, s.position, list(s.tokens)) for s in stretches(table.key(path), table)]
    assert found == [
        ((), 0, 0, [0, 1, 2, 3, 4, 5]),
        ((Drop(((1, 4),)), Insert(1, 2)), 6, 1, [6, 7]),
        ((), 8, 6, [8, 9]),
    ]
