"""Cache programs and policies on the text of a history, for servers whose cache can't be edited.

The same weaving as for tokens, over stand-ins: each message is as many as its text probably has, so that windows and
thresholds mean what they mean elsewhere. What is no longer visible at the end is left out of the text.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from akashic_daemon.errors import Unsupported
from akashic_daemon.program.align import entries_of
from akashic_daemon.program.layout import Layout
from akashic_daemon.program.message_ops import DropTokens, ReposAt
from akashic_daemon.program.weave import compile_ops
from akashic_daemon.program.wire import Asked
from akashic_daemon.trajectory.message import Message
from akashic_daemon.trajectory.prompt import Prompt

_ENDLESS = 1 << 30
_REMOVED = "[removed]"

TokensOf = Callable[[Message], int]
"""How many tokens a message probably has."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The history as it is to be sent.

    numbers: where each message stands in the whole history. dropped_tokens: an estimate. notes: what was done, for people.
    """

    messages: tuple[Message, ...]
    numbers: Sequence[int]
    dropped_tokens: int = 0
    notes: tuple[str, ...] = ()

    @staticmethod
    def whole(messages: Sequence[Message], notes: tuple[str, ...] = ()) -> Pruned:
        """Return a history of which nothing is gone."""
        return Pruned(tuple(messages), range(len(messages)), notes=notes)


def prune(
    messages: Sequence[Message], asked: Asked, tokens_of: TokensOf, *, window_tokens: int, since: int = 0
) -> Pruned:
    """Return a history with operations and a policy applied to its text.

    since: the message from which on the policy is asked. Raises BadRequest of programs, and Unsupported for token
    ranges: only the server knows its tokens.
    """
    policy = asked.policy if asked.policy is not None and asked.policy.rules else None
    if not asked.ops and policy is None:
        return Pruned.whole(messages, asked.notes)
    notes = list(asked.notes)
    if policy is not None and policy.parameters and not window_tokens:
        notes.append(f"policy {policy}: the server's window isn't known, so what is a part of it never comes about")
    rules = policy.bound(window_tokens or _ENDLESS) if policy is not None else None
    for op in asked.ops:
        if isinstance(op, DropTokens) or not isinstance(getattr(op, "replacement", ""), str):
            raise Unsupported(f"{op}: only the remote server knows its tokens", hint="name whole messages, and texts")
    counts = [max(1, tokens_of(m)) for m in messages]
    tokens = array("i", (i for i, count in enumerate(counts) for _ in range(count)))
    prompt = Prompt(tokens + array("i", [-1]), tokens + array("i", [len(messages)]))
    texts: dict[int, str] = {}

    def render(index: int, text: str) -> Sequence[int]:
        texts[index] = text
        return [-2 - index] * max(1, tokens_of(replace(messages[index], content=text)))

    compiled = compile_ops(Layout.of(messages, prompt), asked.ops, rules=rules, since=since, render=render)
    visible = Counter[int]()
    shown: dict[int, int] = {}
    for entry in entries_of(compiled.path, compiled.message_at):
        visible[entry.owner] += len(entry.tokens)
        shown[entry.owner] = entry.tokens[0]
    kept: dict[int, Message] = {}
    for index in sorted(i for i, count in visible.items() if count and i < len(messages)):
        said = messages[index]
        kept[index] = replace(said, content=texts[index], tool_calls=()) if shown[index] < -1 else said
    replaced = sum(1 for first in shown.values() if first < -1)
    sent = _paired(messages, kept)
    gone = len(messages) - len(sent)
    notes += compiled.notes
    if gone or replaced:
        done = ", ".join(f"{n} {what}" for n, what in ((gone, "messages left out"), (replaced, "replaced")) if n)
        notes.append(f"cache operations were applied to the text, whose cache the server can't edit: {done}")
    if any(isinstance(op, ReposAt) for op in asked.ops):
        notes.append("repos does nothing on this server: text is always numbered from 0")
    return Pruned(tuple(sent.values()), tuple(sent), compiled.dropped_tokens, tuple(notes))


def _paired(messages: Sequence[Message], kept: Mapping[int, Message]) -> dict[int, Message]:
    """Return what is kept, with each kept call answered and no answer whose call is gone: servers refuse both."""
    called = {call.id for m in kept.values() for call in m.tool_calls}
    gone = {call.id for m in messages for call in m.tool_calls} - called
    out: dict[int, Message] = {}
    for index, message in enumerate(messages):
        if message.tool_call_id in called:
            out[index] = kept.get(index) or replace(message, content=_REMOVED)
        elif index in kept and message.tool_call_id not in gone:
            out[index] = kept[index]
    return out
