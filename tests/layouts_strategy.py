"""Random histories as layouts, and random operations on them, for tests of message-level cache programs."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from akashic_daemon.errors import BadRequest
from akashic_daemon.program.layout import Layout
from akashic_daemon.program.message_ops import DropMessages, DropTokens, MessageOp, ReplaceMessage, ReposAt, check
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.trajectory.prompt import Prompt
from akashic_daemon.trajectory.template import ChatTemplate

OPENING = (901, 902)
"""What every answer's tokens begin with, and the generation prompt is."""
THINK = ((903,), (904,))
"""Marks around reasoning."""

CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
TOOLS_IN_ONE_TURN = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<user>{% endif %}"
    "[{{ m.content }}]{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}</>{% endif %}"
    "{% else %}<{{ m.role }}>{{ m.content }}</>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Consecutive tool results are one user turn, so their borders can't be found, as in several families of models."""


def rendered_layout(template: str, messages: Sequence[Message], *, head_tokens: int = 0, prompt: bool = True) -> Layout:
    """Return the layout of messages in a real template's text; a token is a byte."""
    tokens, owners = array("i"), array("i")
    for segment in ChatTemplate(template, bos="", eos="").segments(messages, add_generation_prompt=prompt).segments:
        text = segment.text.encode()
        tokens.extend(text)
        owners.extend([segment.first_message] * len(text))
    return Layout.of(messages, Prompt(tokens, owners), head_tokens=head_tokens)


def layout_of(
    roles: str, sizes: Sequence[int] | None = None, *, prompt: bool = True, head: int = 0, thinking: Sequence[int] = ()
) -> Layout:
    """Return a layout of messages s, u, a, t; size 0 shares the segment before it; `thinking` messages have reasoning."""
    messages, tokens, owners = [], array("i"), array("i")
    names = {"s": Role.SYSTEM, "u": Role.USER, "a": Role.ASSISTANT, "t": Role.TOOL}
    for index, letter in enumerate(roles):
        count = 5 if sizes is None else sizes[index]
        own = [index * 10 + i for i in range(count)]
        if letter == "a" and count:
            own = [*OPENING, *own]
        if index in thinking:
            own += [903, 5, 6, 904, 7]
        messages.append(Message(names[letter], f"message {index}", thinking="hm" if index in thinking else None))
        tokens.extend(own)
        owners.extend([index] * len(own))
    if prompt:
        tokens.extend(OPENING)
        owners.extend([len(messages)] * len(OPENING))
    return Layout.of(messages, Prompt(tokens, owners), head_tokens=head, thinking_marks=THINK)


def random_layout(chance: random.Random, *, longest: int = 14) -> Layout:
    """Return an agent's history: perhaps a system message, users, answers, tool results alone or in one segment."""
    roles = chance.choice(["s", ""]) + "u"
    while len(roles) < chance.randint(3, longest):
        roles += chance.choice(["a", "at", "at", "att", "au", "u", "s"])
    sizes = [chance.randint(1, 5) for _ in roles]
    for i in range(2, len(roles)):
        if roles[i] == roles[i - 1] == "t" and chance.random() < 0.5:
            sizes[i] = 0
    thinking = [i for i, letter in enumerate(roles) if letter == "a" and chance.random() < 0.4]
    return layout_of(roles, sizes, head=chance.choice([0, 0, 1]), thinking=thinking)


def random_ops(chance: random.Random, layout: Layout, *, most: int = 8) -> list[MessageOp]:
    """Return operations that `check` accepts, in order of their places."""
    out: list[MessageOp] = []
    replaced: set[int] = set()
    for at in sorted(chance.randint(0, len(layout.messages)) for _ in range(chance.randint(0, most))):
        op = _random_op(chance, layout, at)
        if isinstance(op, ReplaceMessage) and op.message in replaced:
            continue
        try:
            check([op], layout)
        except BadRequest:
            continue
        if isinstance(op, ReplaceMessage):
            replaced.add(op.message)
        out.append(op)
    return out


def _random_op(chance: random.Random, layout: Layout, at: int) -> MessageOp:
    kind = chance.choice(("drop", "drop", "tokens", "repos", "replace", "replace"))
    message = layout.messages[chance.randrange(len(layout.messages))]
    if kind == "repos":
        return ReposAt(at=at)
    if kind == "replace":
        return ReplaceMessage(message.index, tuple(1000 + i for i in range(chance.randint(0, 9))), at=at)
    if kind == "tokens" and message.ranges:
        start, end = message.ranges[0]
        first = chance.randrange(start, end)
        return DropTokens(((first, chance.randint(first + 1, end)),), at=at)
    return DropMessages(tuple(range(*message.group)), at=at)
