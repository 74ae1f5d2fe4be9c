"""Message-level programs against a twin that walks token by token, and what must hold for any history."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

import pytest

from akashic_daemon.errors import BadRequest
from akashic_daemon.program import oracle
from akashic_daemon.program.active import active_cache
from akashic_daemon.program.layout import Layout
from akashic_daemon.program.message_ops import DropMessages, DropTokens, MessageOp, ReplaceMessage, newest_users
from akashic_daemon.program.policy import load
from akashic_daemon.program.weave import Compiled, compile_ops, trace
from akashic_daemon.program.wire import from_stored, to_stored
from akashic_daemon.trajectory.message import Role
from layouts_strategy import layout_of, random_layout, random_ops
from normal_form import normal_form
from paths_strategy import random_path

POLICIES = (
    "tool-rolling-drop:keep=2,threshold=12,gain=3",
    "tool-rolling-drop:keep=0,threshold=1000",
    "think-drop:keep=1,threshold=20,gain=1",
    "window:sink=1,recent=3,budget=20,threshold=25,gain=2",
    "none",
)


@dataclass
class Twin:
    """Which path tokens each path token may attend to, by the words of the design alone; owners of all tokens."""

    visible: set[int] = field(default_factory=set)
    owners: list[int] = field(default_factory=list)
    layout_index: list[int | None] = field(default_factory=list)
    sees: list[set[int]] = field(default_factory=list)

    def append(self, owner: int, index: int | None, hidden: set[int]) -> None:
        self.sees.append({*(self.visible - hidden), len(self.owners)})
        self.visible.add(len(self.owners))
        self.owners.append(owner)
        self.layout_index.append(index)

    def apply(self, op: MessageOp) -> None:
        if isinstance(op, DropMessages):
            self.visible -= {i for i in self.visible if self.owners[i] in op.messages and not self._is_head(i)}
        elif isinstance(op, DropTokens):
            dropped = {i for start, end in op.ranges for i in range(start, end)}
            self.visible -= {i for i in self.visible if self.layout_index[i] in dropped}
        elif isinstance(op, ReplaceMessage):
            assert not isinstance(op.replacement, str)
            self.apply(DropMessages((op.message,)))
            behind = {i for i in self.visible if self.owners[i] > op.message}
            for _ in op.replacement:
                self.append(op.message, None, behind)

    head: int = 0

    def _is_head(self, i: int) -> bool:
        index = self.layout_index[i]
        return index is not None and index < self.head


def _twin(layout: Layout, ops: tuple[MessageOp, ...]) -> Twin:
    twin, at = Twin(head=layout.head_tokens), 0
    for place in range(len(layout.messages) + 1):
        while at < layout.offset(place):
            twin.append(layout.message_at[at], at, set())
            at += 1
        for op in ops:
            if op.at == place:
                twin.apply(op)
    while at < len(layout.tokens):
        twin.append(layout.message_at[at], at, set())
        at += 1
    return twin


def _compiled(chance: random.Random, layout: Layout) -> Compiled | None:
    try:
        return compile_ops(layout, random_ops(chance, layout))
    except BadRequest as error:
        # What can't be seen by looking at one operation alone.
        if "dropped already" not in error.message and "left out" not in error.message:
            raise
        return None


def _cases(seed: int, count: int) -> list[tuple[Layout, Compiled]]:
    chance = random.Random(seed)
    found: list[tuple[Layout, Compiled]] = []
    while len(found) < count:
        layout = random_layout(chance)
        compiled = _compiled(chance, layout)
        if compiled is not None:
            found.append((layout, compiled))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_compiled_program_shows_each_token_what_the_twin_shows_it(seed: int) -> None:
    for layout, compiled in _cases(seed, 25):
        twin, told = _twin(layout, compiled.ops), oracle.run(compiled.path)
        assert list(compiled.message_at) == twin.owners
        assert [set(view.sees) for view in told.views] == twin.sees
        assert set(told.positions) == twin.visible
        state = active_cache(compiled.path)
        assert {s.first + i: s.position + i for s in state.spans for i in range(s.length)} == told.positions
        assert (compiled.visible_tokens, compiled.next_position) == (len(told.positions), told.next_position)


@pytest.mark.parametrize("seed", range(12, 18))
def test_visible_tokens_stand_in_the_order_of_their_messages_and_share_no_position(seed: int) -> None:
    for _layout, compiled in _cases(seed, 25):
        positions = oracle.run(compiled.path).positions
        assert len(set(positions.values())) == len(positions)
        owners = [compiled.message_at[i] for i, _ in sorted(positions.items(), key=lambda item: item[1])]
        assert owners == sorted(owners)


@pytest.mark.parametrize("seed", range(18, 24))
def test_the_ledger_says_what_the_naive_twin_says_before_the_generation_prompt(seed: int) -> None:
    for layout, compiled in _cases(seed, 25):
        twice, ledger = trace(layout, compiled.ops)
        prompt = len(layout.tokens) - layout.end
        told = oracle.run(compiled.path)
        body = {i: p for i, p in told.positions.items() if i < len(compiled.path) - prompt}
        assert ledger.positions() == body
        assert ledger.visible_tokens == len(body)
        shown = {compiled.message_at[i] for i in body} - {0 if layout.head_tokens else -1}
        kept = {m for m in ledger.visible["messages"] if layout.messages[m].ranges}
        assert kept - {0} == shown - {0}
        assert twice.path == compiled.path


@pytest.mark.parametrize("seed", range(24, 30))
def test_compiling_the_resolved_operations_again_or_twice_changes_nothing(seed: int) -> None:
    for layout, compiled in _cases(seed, 25):
        assert compile_ops(layout, compiled.ops).path == compiled.path
        drops = [op for op in compiled.ops if isinstance(op, DropMessages | DropTokens)]
        doubled = [op for op in drops for _ in range(2)]
        assert compile_ops(layout, doubled).path == compile_ops(layout, drops).path
        assert compile_ops(layout, doubled).skipped_tokens >= compile_ops(layout, drops).dropped_tokens


@pytest.mark.parametrize("seed", range(30, 36))
def test_what_is_compiled_is_in_normal_form_already(seed: int) -> None:
    for _layout, compiled in _cases(seed, 25):
        assert normal_form(compiled.path) == compiled.path


@pytest.mark.parametrize("seed", range(40))
def test_normal_form_keeps_what_every_token_sees_and_is_stable(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        path = random_path(chance)
        normal = normal_form(path)
        assert oracle.run(normal) == oracle.run(path)
        assert normal_form(normal) == normal
        assert len(normal.ops) <= len(path.ops)


@pytest.mark.parametrize("seed", range(36, 40))
def test_resolved_operations_survive_storage(seed: int) -> None:
    for _layout, compiled in _cases(seed, 25):
        stored = json.loads(json.dumps([to_stored(op) for op in compiled.ops]))
        assert tuple(from_stored(stored)) == compiled.ops


def _first(layout: Layout, count: int) -> Layout:
    """Return the layout that the first `count` messages had when an answer was generated after them."""
    end = layout.offset(count)
    tokens = layout.tokens[:end] + layout.tokens[layout.end :]
    owners = layout.message_at[:end] + layout.message_at[:0]
    owners.extend([count] * (len(tokens) - end))
    return Layout(tokens, owners, layout.messages[:count], layout.head_tokens, end, layout.starts[:count])


@pytest.mark.parametrize("spec", POLICIES)
@pytest.mark.parametrize("seed", range(10))
def test_a_policy_s_program_for_a_history_begins_with_its_program_for_each_earlier_answer(spec: str, seed: int) -> None:
    chance, rules = random.Random(seed), load(spec).bound(64)
    for _ in range(10):
        layout = random_layout(chance, longest=24)
        whole = compile_ops(layout, rules=rules)
        for count in range(1, len(layout.messages)):
            message = layout.messages[count]
            if message.role is not Role.ASSISTANT or message.group[0] != count:
                continue
            earlier = compile_ops(_first(layout, count), rules=rules)
            assert earlier.path == whole.path.prefix(len(earlier.path))
            assert earlier.ops == tuple(op for op in whole.ops if op.at is not None and op.at <= count)


@pytest.mark.parametrize("spec", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_a_policy_never_drops_what_is_protected(spec: str, seed: int) -> None:
    chance, rules = random.Random(seed), load(spec).bound(64)
    for _ in range(20):
        layout = random_layout(chance, longest=24)
        newest = newest_users(layout)
        for op in compile_ops(layout, rules=rules).ops:
            assert op.at is not None
            gone = op.messages if isinstance(op, DropMessages) else ()
            assert newest[op.at] not in gone
            assert all(layout.messages[m].role is not Role.SYSTEM for m in gone)
            for message in gone:
                assert set(range(*layout.messages[message].group)) <= set(gone)


@pytest.mark.parametrize("seed", range(10))
def test_a_history_computed_without_what_a_policy_dropped_has_the_same_visible_tokens_and_goes_on_alike(
    seed: int,
) -> None:
    chance, rules = random.Random(seed), load("tool-rolling-drop:keep=1,threshold=9999").bound(64)
    for _ in range(20):
        layout = random_layout(chance, longest=24)
        compiled, ledger = trace(layout, rules=rules)
        gone = [m.index for m in layout.messages if not ledger.is_visible(m.index)]
        shorter, kept = trace(layout.without(gone), rules=rules)
        seen = [compiled.path.tokens[i] for i in sorted(oracle.run(compiled.path).positions)]
        assert list(shorter.path.tokens) == seen
        assert shorter.path.ops == ()
        assert kept.visible == ledger.visible
        assert list(shorter.message_at) == [compiled.message_at[i] for i in sorted(oracle.run(compiled.path).positions)]


@pytest.mark.parametrize("seed", range(10, 16))
def test_programs_on_a_history_without_some_messages_agree_with_the_twin(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(25):
        whole = random_layout(chance)
        starts = {m.group for m in whole.messages if chance.random() < 0.3}
        layout = whole.without({m for group in starts for m in range(*group)})
        compiled = _compiled(chance, layout)
        if compiled is not None:
            told = oracle.run(compiled.path)
            assert [set(view.sees) for view in told.views] == _twin(layout, compiled.ops).sees
            assert (compiled.visible_tokens, compiled.next_position) == (len(told.positions), told.next_position)


def test_policies_do_something_on_a_long_history() -> None:
    layout = layout_of("su" + "at" * 40)
    kept = {}
    for spec in ("none", "tool-rolling-drop", "window:budget=100"):
        kept[spec] = trace(layout, rules=load(spec).bound(512))[1].visible["messages"]
    assert len(kept["none"]) == 82
    assert [m for m in kept["tool-rolling-drop"] if layout.messages[m].role is Role.TOOL] == list(range(59, 83, 2))
    assert kept["window:budget=100"][:3] == [0, 1, 82 - 24]
