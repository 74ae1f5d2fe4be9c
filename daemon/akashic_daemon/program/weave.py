"""Weaves message operations, and a policy's rules, into a layout's tokens: the path that a request computes along.

One walk over the history, in order; the same history and operations always give the same path, and a longer history a
path that goes on from it. What was selected by a rule or a selector comes back as plain operations (`Compiled.ops`), so
that a session can remember what was done rather than what was meant.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from akashic_daemon.errors import BadRequest
from akashic_daemon.program.layout import Layout
from akashic_daemon.program.ledger import Dropped, Ledger
from akashic_daemon.program.message_ops import (
    DropMessages,
    DropSelected,
    DropTokens,
    MessageOp,
    ReplaceMessage,
    ReposAt,
    check,
    counted,
    labelled,
    protection,
    refusal,
)
from akashic_daemon.program.path import Drop, Op, Path, PathBuilder, PlacedOp, Repos
from akashic_daemon.program.ranges import Ranges, subtract, union
from akashic_daemon.program.selectors import Selection, Selector, select
from akashic_daemon.trajectory.message import Role

Render = Callable[[int, str], Sequence[int]]
"""(message, its new text) -> token ids of the whole message, role marks included."""

Rules = Callable[[Ledger], Iterable[DropSelected | ReposAt]]
"""What a policy wants done, asked at each place where an answer is generated; each operation is applied as it comes."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A path, and what its operations do.

    ops: what was carried out, selectors and rules resolved, each with its `at`. message_at: the message that owns each
    token of the path, as in Prompt; replacements shift it against the layout. skipped_tokens: asked to be dropped, but
    gone already. repos_tokens: positions changed. effects: for each of `ops`, how many tokens it took away or moved.
    """

    path: Path
    message_at: array[int]
    ops: tuple[MessageOp, ...]
    notes: tuple[str, ...]
    dropped_tokens: int
    skipped_tokens: int
    repos_tokens: int
    replaced_tokens: int
    replacement_tokens: int
    visible_tokens: int
    next_position: int
    effects: tuple[int, ...] = ()


def compile_ops(
    layout: Layout,
    ops: Sequence[MessageOp] = (),
    *,
    rules: Rules | None = None,
    since: int = 0,
    render: Render | None = None,
) -> Compiled:
    """Return the path of `layout` with `ops` and what `rules` add.

    At one place, `ops` take effect in the order given and before the rules. since: the first place where the rules are
    asked; a session that gets a policy later keeps what it computed before. render: needed when a replacement is text.
    Raises BadRequest, naming the operation, if one of `ops` can't be carried out.
    """
    return trace(layout, ops, rules=rules, since=since, render=render)[0]


def trace(
    layout: Layout,
    ops: Sequence[MessageOp] = (),
    *,
    rules: Rules | None = None,
    since: int = 0,
    render: Render | None = None,
) -> tuple[Compiled, Ledger]:
    """Return what `compile_ops` does, and the account of what is visible before the generation prompt."""
    named = labelled(ops)
    check(named, layout)
    return _Weaver(layout, render).run(named, rules, since)


class _Weaver:
    def __init__(self, layout: Layout, render: Render | None) -> None:
        self._layout = layout
        self._render = render
        self._ledger = Ledger(layout.head_tokens)
        self._builder = PathBuilder()
        self._owners = array("i")
        self._taken = 0
        self._by_rule = False
        self._ops: list[MessageOp] = []
        self._effects: list[int] = []
        self._notes: dict[str, None] = {}
        self._counts = dict.fromkeys(("dropped", "skipped", "repos", "replaced", "replacement"), 0)

    def run(self, ops: Sequence[MessageOp], rules: Rules | None, since: int) -> tuple[Compiled, Ledger]:
        at_place = self._placed(ops)
        messages = self._layout.messages
        for place in range(len(messages) + 1):
            for op in at_place.get(place, ()):
                self._apply(op, place)
            if rules is not None and place >= since and self._answers_at(place):
                self._by_rule = True
                for rule_op in rules(self._ledger):
                    self._apply(rule_op, place)
                self._by_rule = False
            if place < len(messages):
                self._ledger.append(messages[place])
        self._flush(len(self._layout.tokens))
        return self._compiled(), self._ledger

    def _compiled(self) -> Compiled:
        left = len(self._layout.tokens) - self._layout.end
        counts = {f"{name}_tokens": count for name, count in self._counts.items()}
        return Compiled(
            self._builder.build(),
            self._owners,
            tuple(self._ops),
            tuple(self._notes),
            visible_tokens=self._ledger.visible_tokens + left,
            next_position=self._ledger.next_position + left,
            effects=tuple(self._effects),
            **counts,
        )

    def _placed(self, ops: Sequence[MessageOp]) -> dict[int, list[MessageOp]]:
        """Sort operations by place; one that stands inside a group moves behind it."""
        out: dict[int, list[MessageOp]] = {}
        for op in ops:
            at = len(self._layout.messages) if op.at is None else op.at
            border = self._layout.border(at)
            if border != at:
                self._note(f"{op.label} ({op}) takes effect before message {border}: {at} has no border of its own")
            out.setdefault(border, []).append(op)
        return out

    def _answers_at(self, place: int) -> bool:
        layout = self._layout
        if place == len(layout.messages):
            return layout.has_generation_prompt
        message = layout.messages[place]
        answered = message.role is Role.ASSISTANT and not message.recalled
        return answered and message.present and message.group[0] == place and place > 0

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _stays(self, text: str) -> None:
        """Tell who asked for it what stays; that a rule leaves what is protected goes without saying, at each place."""
        if not self._by_rule:
            self._note(text)

    def _flush(self, offset: int) -> None:
        """Append the layout's tokens up to `offset`."""
        if offset <= self._taken:
            return
        self._builder.append(self._layout.tokens[self._taken : offset])
        self._owners.extend(self._layout.message_at[self._taken : offset])
        self._taken = offset

    def _emit(self, op: Op, place: int) -> None:
        self._flush(self._layout.offset(place))
        ops, here = self._builder.ops, len(self._builder.tokens)
        if isinstance(op, Drop) and ops and ops[-1].offset == here:
            last = ops[-1].op
            if isinstance(last, Drop):
                ops[-1] = PlacedOp(here, Drop(union(last.ranges, op.ranges)))
                return
        self._builder.apply(op)

    def _apply(self, op: MessageOp, place: int) -> None:
        if isinstance(op, ReposAt):
            self._repos(op, place)
        elif isinstance(op, DropMessages):
            self._drop_messages(op, op.messages, place)
        elif isinstance(op, DropTokens):
            self._drop_tokens(op, tuple(sorted(op.ranges)), place)
        elif isinstance(op, ReplaceMessage):
            self._replace(op, op.message, op.replacement, place)
        elif isinstance(op, DropSelected):
            self._drop_selected(op, place)
        else:
            for message in self._free(op, self._selected(op, op.selector).messages):
                self._replace(op, message, op.replacement, place)

    def _repos(self, op: MessageOp, place: int) -> None:
        self._ops.append(ReposAt(at=place, label=op.label))
        moved = self._ledger.repos()
        self._effects.append(moved or 0)
        if moved is not None:
            self._emit(Repos(), place)
            self._counts["repos"] += moved

    def _drop_messages(self, op: MessageOp, messages: tuple[int, ...], place: int) -> None:
        self._ops.append(DropMessages(messages, at=place, label=op.label))
        self._dropped(self._ledger.drop_messages(messages), place)

    def _drop_tokens(self, op: MessageOp, ranges: Ranges, place: int) -> None:
        self._ops.append(DropTokens(ranges, at=place, label=op.label))
        owners = self._layout.messages_in(ranges[0][0], ranges[-1][1])
        self._dropped(self._ledger.drop_tokens(ranges, owners), place)

    def _dropped(self, gone: Dropped, place: int) -> None:
        self._effects.append(gone.tokens)
        self._counts["dropped"] += gone.tokens
        self._counts["skipped"] += gone.skipped
        if gone.ranges:
            self._emit(Drop(gone.ranges), place)

    def _selected(self, op: MessageOp, selector: Selector) -> Selection:
        try:
            found = select(selector, self._ledger)
        except BadRequest as error:
            raise refusal(op, error.message, error.hint) from error
        for note in found.notes:
            self._note(note)
        return found

    def _drop_selected(self, op: DropSelected, place: int) -> None:
        found = self._selected(op, op.selector)
        if found.ranges:
            ranges = self._free_ranges(op, found.ranges, place)
            if ranges:
                self._drop_tokens(op, ranges, place)
        visible = tuple(m for m in found.messages if self._ledger.is_visible(m))
        messages = self._free(op, visible)
        if messages:
            self._drop_messages(op, messages, place)

    def _free(self, op: MessageOp, messages: tuple[int, ...]) -> tuple[int, ...]:
        """Leave out what is protected, and groups of which only a part is meant.

        The newest user message is judged by what precedes the place alone, so that the answer doesn't change later.
        """
        newest = self._ledger.newest_user
        chosen: set[int] | None = None
        out: list[int] = []
        for message in messages:
            entry = self._layout.messages[message]
            if entry.role is Role.SYSTEM or message == newest or entry.approximate:
                chosen = set(messages) if chosen is None else chosen
                reason = protection(self._layout, message, newest)
                if reason is None and not chosen.issuperset(range(*entry.group)):
                    reason = f"{counted(range(*entry.group))} share one segment of the template and only leave together"
                if reason is not None:
                    self._stays(f"{op}: {reason}; it stays")
                    continue
            out.append(message)
        return tuple(out)

    def _free_ranges(self, op: MessageOp, ranges: Ranges, place: int) -> Ranges:
        """Leave out tokens that are scaffolding, protected, or not there yet."""
        layout = self._layout
        kept = subtract(ranges, ((0, layout.head_tokens), (layout.offset(place), 1 << 62)))
        for message in layout.messages_in(ranges[0][0], ranges[-1][1]) if kept else ():
            entry = layout.messages[message]
            if entry.ranges and protection(layout, message, self._ledger.newest_user) is not None:
                kept = subtract(kept, entry.ranges)
        if kept != ranges:
            self._stays(f"{op}: tokens that are protected or don't precede the place stay")
        return kept

    def _replace(self, op: MessageOp, message: int, replacement: str | tuple[int, ...], place: int) -> None:
        if not self._layout.messages[message].present:
            raise refusal(op, f"message {message} was left out of the prompt, so it has no place to give")
        if not self._ledger.tokens_of(message):
            raise refusal(op, f"message {message} is dropped already, so nothing has a place to give")
        if self._layout.messages[message].approximate:
            raise refusal(op, f"message {message} shares its segment of the template and can't be replaced alone")
        if isinstance(replacement, str):
            assert self._render is not None, "a text replacement without render"
            tokens = tuple(self._render(message, replacement))
        else:
            tokens = replacement
        self._flush(self._layout.offset(place))
        done = self._ledger.replace(message, len(tokens))
        resolved = ReplaceMessage(message, replacement, at=place, label=op.label)
        for part in done.ops:
            self._emit(part, place)
            if isinstance(part, Repos):
                self._note(f"{resolved}: {len(tokens)} tokens don't fit where {done.dropped} stood; a repos made room")
        self._builder.append(tokens)
        self._owners.extend([message] * len(tokens))
        self._counts["replaced"] += done.dropped
        self._counts["replacement"] += len(tokens)
        self._counts["repos"] += done.moved
        self._ops.append(resolved)
        self._effects.append(done.dropped)
