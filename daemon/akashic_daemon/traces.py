"""What was computed last, per session: the traces that an edited history is recognised by.

Only memory of this run; it holds tokens and messages, never KV. Bounded by tokens, oldest first out.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from akashic_daemon.program.align import Entry, SameMeaning, Trace
from akashic_daemon.program.path import Path
from akashic_daemon.trajectory.message import Message

KEPT_KINDS = frozenset({"volatile_text", "arguments_reserialised", "tokenized_otherwise"})
"""Edits that keep the older text of a message, because it counts as the same."""
_MOST_TOKENS = 4_000_000
_CANDIDATES = 6


@dataclass(frozen=True, slots=True)
class Known:
    """A trace, the messages that its entries' owners number, and the tools of its prompt.

    altered: owners whose entries operations made say something else than the message.
    """

    session: str | None
    model: str
    trace: Trace
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    altered: frozenset[int] = frozenset()


class Traces:
    """The last trace of each session."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, Known] = OrderedDict()
        self._tokens = 0

    def remember(self, known: Known) -> None:
        """Keep it as its session's trace."""
        name = known.session or ""
        old = self._of.pop(name, None)
        if old is not None:
            self._tokens -= len(old.trace.path.tokens)
        self._of[name] = known
        self._tokens += len(known.trace.path.tokens)
        while self._tokens > _MOST_TOKENS and len(self._of) > 1:
            _, gone = self._of.popitem(last=False)
            self._tokens -= len(gone.trace.path.tokens)

    def forget(self, session: str) -> None:
        """Drop a session's trace."""
        old = self._of.pop(session, None)
        if old is not None:
            self._tokens -= len(old.trace.path.tokens)

    def paths(self) -> list[Path]:
        """Return the path of each session."""
        return [known.trace.path for known in self._of.values()]

    def of_session(self, session: str | None) -> Known | None:
        """Return the trace of a session."""
        return None if session is None else self._of.get(session)

    def alike(self, model: str, session: str | None, target: Sequence[Entry]) -> list[Known]:
        """Return traces that `target` may be an edit of: its session's own, then newest first those that begin alike."""
        own = self._of.get(session) if session is not None else None
        found = [own] if own is not None and own.model == model else []
        heads = [entry.tokens for entry in target[:2]]
        for known in reversed(self._of.values()):
            if len(found) >= _CANDIDATES:
                break
            entries = known.trace.entries
            if known is not own and known.model == model and any(e.tokens in heads for e in entries[:2]):
                found.append(known)
        return found


class Meaning:
    """Says when two versions of a message count as the same: `volatile` is a pattern of what always changes."""

    def __init__(self, volatile: str) -> None:
        self._volatile = re.compile(volatile, re.MULTILINE) if volatile else None

    def between(self, known: Known, new: Sequence[Message], altered: frozenset[int]) -> SameMeaning:
        """Return the comparison of the messages of a trace with those of a request, `altered` by operations of its own.

        What operations altered is compared by tokens only: it doesn't stand there as the message has it.
        """
        old = known.messages

        def same(old_index: int, new_index: int) -> str | None:
            if old_index >= len(old) or new_index >= len(new):
                return None
            if old_index in known.altered or new_index in altered:
                return None
            return self.reason(old[old_index], new[new_index])

        return same

    def reason(self, old: Message, new: Message) -> str | None:
        """Return why they count as the same although their texts differ, or None."""
        if old.role != new.role or old.tool_call_id != new.tool_call_id or old.thinking != new.thinking:
            return None
        if old.content == new.content:
            if old.tool_calls == new.tool_calls:
                return "tokenized_otherwise"
            return "arguments_reserialised" if _calls(old) == _calls(new) else None
        if old.tool_calls != new.tool_calls or self._volatile is None:
            return None
        steady = self._volatile.sub("", old.content) == self._volatile.sub("", new.content)
        return "volatile_text" if steady else None


def same_words(a: Message, b: Message) -> bool:
    """Tell if two messages say the same; times and provenance don't count."""
    return a is b or (
        a.content == b.content
        and a.role == b.role
        and a.thinking == b.thinking
        and a.tool_calls == b.tool_calls
        and a.tool_call_id == b.tool_call_id
        and a.name == b.name
    )


def _calls(message: Message) -> list[Any]:
    out: list[Any] = []
    for call in message.tool_calls:
        try:
            out.append((call.id, call.name, json.loads(call.arguments)))
        except ValueError:
            out.append((call.id, call.name, call.arguments))
    return out
