"""Where each message of a history stands among its prompt's tokens, and which messages can't be told apart there.

Built from messages and their `Prompt`. A message owns its whole text with its role marks. Messages that a template
renders into one segment form a *group*: they can only leave together.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from akashic_daemon.program.ranges import Range, Ranges, normal
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.trajectory.prompt import Prompt


@dataclass(frozen=True, slots=True)
class MessageTokens:
    """One message as tokens.

    ranges: its tokens; empty when it shares the segment of an earlier one, or isn't in the prompt.
    group: half-open range of the messages that share its segment, itself included.
    thinking: the tokens of its reasoning; `has_thinking` without them means that the model's marks aren't known.
    recalled: whether memory put it there.
    present: false when the prompt was cut to the window and the message was left out.
    """

    index: int
    role: Role
    ranges: Ranges
    group: Range
    has_thinking: bool = False
    thinking: Ranges = ()
    present: bool = True
    recalled: bool = False

    @property
    def tokens(self) -> int:
        """How many tokens it owns."""
        return sum(end - start for start, end in self.ranges)

    @property
    def approximate(self) -> bool:
        """Whether its border with a neighbour is unknown."""
        return self.group[1] - self.group[0] > 1


@dataclass(frozen=True, slots=True)
class Layout:
    """The prompt's tokens, the message that owns each as in Prompt, and its messages.

    head_tokens: tokens at the start that no message can take with it (begin of text, the template's own preamble).
    end: where the generation prompt begins; the count of tokens when there is none.
    """

    tokens: array[int]
    message_at: array[int] = field(repr=False)
    messages: tuple[MessageTokens, ...]
    head_tokens: int
    end: int
    starts: tuple[int, ...] = field(repr=False, default=())

    @staticmethod
    def of(
        messages: Sequence[Message],
        prompt: Prompt,
        *,
        head_tokens: int = 0,
        thinking_marks: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> Layout:
        """Return the layout of `messages` in `prompt`.

        head_tokens: how many of the first message's tokens aren't its own, e.g. a default system message that the
        template puts before it. thinking_marks: token ids that open and close reasoning; without them no reasoning
        can be told from its message.
        """
        count, owners = len(messages), prompt.message_at
        spans: list[Range] = []
        at = 0
        for index in range(count):
            end = bisect_right(owners, index, at)
            spans.append((at, end))
            at = end
        first_left = 1 if messages and messages[0].role is Role.SYSTEM else 0
        groups = _groups(spans, first_left, prompt.first_message)
        laid = tuple(
            _message(messages[i], i, spans[i], groups[i], head_tokens, prompt.tokens, thinking_marks)
            for i in range(count)
        )
        return Layout(prompt.tokens, owners, laid, head_tokens, at, tuple(start for start, _ in spans))

    @property
    def has_generation_prompt(self) -> bool:
        """Whether tokens follow the last message."""
        return self.end < len(self.tokens)

    def border(self, at: int) -> int:
        """Return the first place >= `at` that doesn't stand inside a group."""
        if at >= len(self.messages):
            return at
        first, end = self.messages[at].group
        return at if at == first else end

    def offset(self, at: int) -> int:
        """Return how many tokens stand before the message at a border; len(messages) gives those before the prompt."""
        return self.end if at >= len(self.messages) else self.starts[at]

    def without(self, messages: Collection[int]) -> Layout:
        """Return the layout of a prompt that never had these messages: they keep their numbers and aren't present.

        For a history of which nothing is computed yet: computing it without what was dropped is cheaper than computing
        it all and dropping. Whole groups only. Token numbers are those of the shorter prompt.
        """
        gone = frozenset(messages)
        head = self.head_tokens
        tokens, owners = self.tokens[:head], self.message_at[:head]
        laid: list[MessageTokens] = []
        starts: list[int] = []
        for message in self.messages:
            starts.append(len(tokens) if message.index else 0)
            if message.index in gone:
                assert gone.issuperset(range(*message.group)), f"part of the group {message.group}"
                alone = (message.index, message.index + 1)
                laid.append(
                    MessageTokens(message.index, message.role, (), alone, present=False, recalled=message.recalled)
                )
                continue
            shift = 0
            for start, end in message.ranges:
                shift = len(tokens) - start
                tokens.extend(self.tokens[start:end])
                owners.extend(self.message_at[start:end])
            laid.append(
                replace(message, ranges=_moved(message.ranges, shift), thinking=_moved(message.thinking, shift))
            )
        end = len(tokens)
        tokens.extend(self.tokens[self.end :])
        owners.extend(self.message_at[self.end :])
        return Layout(tokens, owners, tuple(laid), head, end, tuple(starts))

    def messages_in(self, first: int, end: int) -> range:
        """Return the messages that may own tokens first <= i < end."""
        low = max(0, bisect_right(self.starts, first) - 1)
        while low > 0 and self.starts[low - 1] == self.starts[low]:
            low -= 1
        return range(low, bisect_right(self.starts, end - 1))


def preamble(render: Callable[[Sequence[Message]], str], first: Message) -> str:
    """Return what a template writes before a first message that is the user's: its default system text, tools, marks.

    render: gives a conversation's text without a generation prompt. Empty when it can't be told from the message, and
    when the first message is a system message, which is protected with everything before it.
    """
    if first.role is not Role.USER:
        return ""
    answer = Message(Role.ASSISTANT, "x")
    once, before = render([first]), render([first, answer])
    again = render([first, answer, first])
    turn = again[len(before) :] if again.startswith(before) else ""
    return once.removesuffix(turn) if turn and once.endswith(turn) else ""


def _moved(ranges: Ranges, by: int) -> Ranges:
    return tuple((start + by, end + by) for start, end in ranges)


def _groups(spans: Sequence[Range], first_left: int, first_message: int) -> list[Range]:
    """Return each message's group: one without tokens belongs to what precedes it, unless it was left out."""
    starts: list[int] = []
    for index, (start, end) in enumerate(spans):
        joins = start == end and index > 0 and not first_left <= index < first_message
        starts.append(starts[-1] if joins else index)
    ends = list(range(1, len(spans) + 1))
    for index in range(len(spans) - 2, -1, -1):
        if starts[index + 1] == starts[index]:
            ends[index] = ends[index + 1]
    return list(zip(starts, ends, strict=True))


def _message(
    message: Message,
    index: int,
    span: Range,
    group: Range,
    head_tokens: int,
    tokens: array[int],
    marks: tuple[Sequence[int], Sequence[int]] | None,
) -> MessageTokens:
    ranges = normal([(max(span[0], head_tokens), span[1])])
    thinks = message.thinking is not None or message.content.lstrip().startswith("<think>")
    known: Ranges = ()
    if thinks and marks is not None:
        # Templates leave old reasoning out; where the marks are known and missing, none is in the prompt.
        known = _thinking(tokens, ranges[0], marks) if ranges else ()
        thinks = bool(known)
    shared = group[0] != index
    present = span[0] < span[1] or shared
    return MessageTokens(index, message.role, ranges, group, thinks, known, present, message.is_recalled)


def _thinking(tokens: array[int], span: Range, marks: tuple[Sequence[int], Sequence[int]]) -> Ranges:
    """Return from the opening mark to the closing one; nothing when either is missing."""
    opened = _find(tokens, marks[0], span)
    if opened is None:
        return ()
    closed = _find(tokens, marks[1], (opened + len(marks[0]), span[1]))
    return () if closed is None else ((opened, closed + len(marks[1])),)


def _find(tokens: array[int], mark: Sequence[int], span: Range) -> int | None:
    wanted, (at, end) = array("i", mark), span
    while wanted and at < end:
        try:
            at = tokens.index(wanted[0], at, end)
        except ValueError:
            return None
        if tokens[at : at + len(wanted)] == wanted and at + len(wanted) <= end:
            return at
        at += 1
    return None
