"""Operations on messages: what people, requests and policies ask for, and the limits that everybody is held to.

`at` is the message before which an operation takes effect; the count of messages means before the generation prompt,
and None means the same. `weave` turns them into a token-level path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from akashic_daemon.errors import BadRequest
from akashic_daemon.program.layout import Layout
from akashic_daemon.program.path import MAX_OPS
from akashic_daemon.program.ranges import Range
from akashic_daemon.program.selectors import ByNumber, ByTokens, Selector
from akashic_daemon.trajectory.message import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """at: see the module. label: where it stands in what was sent, e.g. `cache_ops[2]`, for errors."""

    at: int | None = None
    label: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class DropMessages(_Placed):
    """Whole messages stop being visible; those that are gone already are skipped."""

    messages: tuple[int, ...]

    def __str__(self) -> str:
        return f"drop {counted(self.messages)}"


@dataclass(frozen=True, slots=True)
class DropTokens(_Placed):
    """Tokens of the rendered prompt, as half-open ranges, stop being visible."""

    ranges: tuple[Range, ...]

    def __str__(self) -> str:
        return "drop tokens " + ", ".join(f"[{start}, {end})" for start, end in self.ranges)


@dataclass(frozen=True, slots=True)
class DropSelected(_Placed):
    """Drop what a selector means at that place; protected messages stay, and a note says so."""

    selector: Selector

    def __str__(self) -> str:
        return f"drop {self.selector}"


@dataclass(frozen=True, slots=True)
class ReposAt(_Placed):
    """Visible tokens are renumbered from position 0 on."""

    def __str__(self) -> str:
        return "repos"


@dataclass(frozen=True, slots=True)
class ReplaceMessage(_Placed):
    """A message gives its place to a text, or to tokens that stand for the whole message with its role marks."""

    message: int
    replacement: str | tuple[int, ...]

    def __str__(self) -> str:
        return f"replace message {self.message}"


@dataclass(frozen=True, slots=True)
class ReplaceSelected(_Placed):
    """Replace each message that a selector means at that place; protected ones stay, and a note says so."""

    selector: Selector
    replacement: str

    def __str__(self) -> str:
        return f"replace {self.selector}"


MessageOp = DropMessages | DropTokens | DropSelected | ReposAt | ReplaceMessage | ReplaceSelected


def counted(messages: Sequence[int]) -> str:
    """Return messages for people: `message 3`, `messages 3..5`, `messages 3, 4, 9`."""
    if len(messages) == 1:
        return f"message {messages[0]}"
    if len(messages) > 1 and list(messages) == list(range(messages[0], messages[0] + len(messages))):
        return f"messages {messages[0]}..{messages[-1]}"
    shown = ", ".join(str(m) for m in messages[:8])
    return f"messages {shown}" + (", …" if len(messages) > 8 else "")


def refusal(op: MessageOp, reason: str, hint: str | None = None) -> BadRequest:
    """Return the error that names the operation and the reason."""
    name = f"{op.label} ({op})" if op.label else str(op)
    return BadRequest(f"{name}: {reason}", hint=hint)


def labelled(ops: Iterable[MessageOp]) -> list[MessageOp]:
    """Return the operations, each without a label named by its number."""
    return [op if op.label else replace(op, label=f"cache_ops[{i}]") for i, op in enumerate(ops)]


def by_number(op: MessageOp, count: int) -> list[MessageOp]:
    """Return the operation, a selector that gives numbers turned into just these, in a history of `count` messages.

    What is named by number and protected is then refused and not left in place. Numbers beyond the history stay a
    selector, which says so when it is asked.
    """
    selector = op.selector if isinstance(op, DropSelected | ReplaceSelected) else None
    if isinstance(selector, ByTokens) and isinstance(op, DropSelected):
        assert isinstance(selector.first, int)
        assert isinstance(selector.last, int)
        return [DropTokens(((selector.first, selector.last + 1),), at=op.at, label=op.label)]
    if not isinstance(selector, ByNumber):
        return [op]
    assert isinstance(selector.first, int)
    assert isinstance(selector.last, int)
    if selector.last >= count:
        return [op]
    messages = tuple(range(selector.first, selector.last + 1))
    if isinstance(op, ReplaceSelected):
        return [ReplaceMessage(m, op.replacement, at=op.at, label=op.label) for m in messages]
    return [DropMessages(messages, at=op.at, label=op.label)]


def newest_users(layout: Layout) -> list[int | None]:
    """Return for each place the newest user message before it; None if another follows at once: nothing answers it."""
    out: list[int | None] = []
    newest: int | None = None
    for message in layout.messages:
        out.append(None if message.role is Role.USER else newest)
        if message.role is Role.USER and not message.recalled:
            newest = message.index
    return [*out, newest]


def protection(layout: Layout, message: int, newest: int | None) -> str | None:
    """Return why a message must stay, or None; the members of a group are protected together."""
    first, end = layout.messages[message].group
    for member in range(first, end):
        shared = "" if member == message else f" shares its segment with message {member}, which"
        if layout.messages[member].role is Role.SYSTEM:
            return f"message {message}{shared} is a system message"
        if member == newest:
            return f"message {message}{shared} is the newest user message there"
    return None


def check(ops: Sequence[MessageOp], layout: Layout) -> None:
    """Refuse what can be refused by looking at each operation alone. Raises BadRequest."""
    if len(ops) > MAX_OPS:
        raise BadRequest(f"a program of {len(ops)} operations; at most {MAX_OPS} are taken", hint="join drops")
    newest_at = newest_users(layout)
    plain = [m.role is not Role.SYSTEM and m.group[1] - m.group[0] == 1 for m in layout.messages]
    for op in ops:
        at = _check_place(op, layout)
        if isinstance(op, DropMessages):
            _check_messages(op, at, layout, newest_at[at], plain)
        elif isinstance(op, DropTokens):
            _check_tokens(op, at, layout, newest_at[at])
        elif isinstance(op, ReplaceMessage):
            _check_target(op, op.message, at, layout, newest_at[at])
            first, end = layout.messages[op.message].group
            if end - first > 1:
                raise refusal(op, f"{_group(first, end)}, so none of them can be replaced alone")


def _check_place(op: MessageOp, layout: Layout) -> int:
    count = len(layout.messages)
    at = count if op.at is None else op.at
    if at < 0:
        raise refusal(op, f"takes effect before message {at}, but the first message is 0")
    if at > count:
        raise refusal(
            op,
            f"takes effect before message {at}, beyond the history of {count} messages",
            f"at most {count}, which is before the answer",
        )
    if layout.offset(layout.border(at)) >= len(layout.tokens):
        raise refusal(
            op, "stands at the end and no token follows it", "another message or a generation prompt must follow"
        )
    return at


def _check_messages(op: DropMessages, at: int, layout: Layout, newest: int | None, plain: Sequence[bool]) -> None:
    if not op.messages:
        raise refusal(op, "names no message")
    asked = set(op.messages)
    if len(asked) < len(op.messages):
        twice = next(m for m in op.messages if op.messages.count(m) > 1)
        raise refusal(op, f"names message {twice} more than once")
    for message in op.messages:
        if 0 <= message < at and plain[message] and message != newest:
            continue
        _check_target(op, message, at, layout, newest)
        first, end = layout.messages[message].group
        if end - first > 1 and not asked.issuperset(range(first, end)):
            raise refusal(op, _group(first, end), "drop all of them together")


def _check_target(op: MessageOp, message: int, at: int, layout: Layout, newest: int | None) -> None:
    count = len(layout.messages)
    if not 0 <= message < count:
        raise refusal(op, f"there is no message {message}; the history has {count}, from 0 to {count - 1}")
    if message >= at or layout.messages[message].group[1] > at:
        raise refusal(op, f"message {message} isn't complete before message {at}, where it takes effect")
    reason = protection(layout, message, newest)
    if reason is not None:
        raise refusal(op, f"{reason}, and protected")


def _check_tokens(op: DropTokens, at: int, layout: Layout, newest: int | None) -> None:
    if not op.ranges:
        raise refusal(op, "names no tokens")
    last = 0
    for start, end in sorted(op.ranges):
        if end < start:
            raise refusal(op, f"the range [{start}, {end}) ends before it starts")
        if end == start:
            raise refusal(op, f"the range [{start}, {end}) is empty", "its end is the first token that stays")
        if start < 0 or end > len(layout.tokens):
            raise refusal(op, f"the range [{start}, {end}) lies outside the prompt's {len(layout.tokens)} tokens")
        if start < last:
            raise refusal(op, f"the range [{start}, {end}) overlaps another")
        last = end
        _check_span(op, (start, end), at, layout, newest)


def _check_span(op: DropTokens, span: Range, at: int, layout: Layout, newest: int | None) -> None:
    start, end = span
    if start < layout.head_tokens or end > layout.end:
        raise refusal(op, f"the range [{start}, {end}) holds the template's scaffolding, which is protected")
    if end > layout.offset(layout.border(at)):
        raise refusal(op, f"token {end - 1} doesn't precede message {at}, where it takes effect")
    for message in layout.messages_in(start, end):
        reason = protection(layout, message, newest)
        if reason is not None:
            raise refusal(op, f"the range [{start}, {end}) holds tokens of a protected message: {reason}")


def _group(first: int, end: int) -> str:
    return f"messages {first}..{end - 1} share one segment of the model's template"
