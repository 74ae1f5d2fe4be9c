"""What was computed last, per session and fingerprint: the traces that an edited history is recognised by.

Tokens and messages, never KV; the memory of `trace_keeper`, which keeps them over restarts. Bounded by tokens, oldest
first out. A trace is a path to go on along only under its own fingerprint; under another it still explains.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from akashic_daemon.program.active import active_cache
from akashic_daemon.program.align import Entry, SameMeaning, Trace, entries_of
from akashic_daemon.program.path import Drop, Path
from akashic_daemon.program.ranges import normal
from akashic_daemon.trajectory.message import Message, ToolCall

KEPT_KINDS = frozenset({"volatile_text", "arguments_reserialised", "tokenized_otherwise"})
"""Edits that keep the older text of a message, because it counts as the same."""
MOST_TOKENS = 4_000_000
MOST_FINGERPRINTS = 4
"""Traces of one session, each under another fingerprint; the oldest goes."""
_CANDIDATES = 6


@dataclass(frozen=True, slots=True)
class Known:
    """A trace, the messages that its entries' owners number, and the tools of its prompt.

    altered: owners whose entries operations made say something else than the message. runs: (owner, tokens) along the
    path, -1 for what the request didn't have any more. template: digest of the chat template that it was laid out by.
    """

    session: str | None
    model: str
    fingerprint: str
    trace: Trace
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    altered: frozenset[int] = frozenset()
    runs: tuple[tuple[int, int], ...] = ()
    template: str = ""

    def first(self, count: int, session: str) -> Known | None:
        """Return what stands on the first `count` messages, as another session's; None when nothing does.

        What an edit took out of them later is dropped at once. Nothing of the other messages is in it.
        """
        if count > len(self.messages):
            return replace(self, session=session)
        owners = array("i")
        for owner, length in self.runs:
            if owner >= count:
                break
            owners.extend([owner] * length)
        path = self.trace.path.prefix(len(owners))
        state = active_cache(path)
        gone = normal((i, i + 1) for start, end in state.indices for i in range(start, end) if owners[i] < 0)
        if gone:
            path = path.then((), [Drop(gone)])
            state = active_cache(path)
        entries = entries_of(path, owners, state)
        if not entries:
            return None
        runs = tuple(self.runs[: sum(1 for _ in groupby(owners))])
        altered = frozenset(owner for owner in self.altered if owner < count)
        trace = Trace(path, entries, open_tail=False)
        messages = self.messages[:count]
        return replace(self, session=session, trace=trace, messages=messages, altered=altered, runs=runs)


def runs_of(owners: array[int]) -> tuple[tuple[int, int], ...]:
    """Return (owner, how many tokens in a row)."""
    return tuple((owner, sum(1 for _ in run)) for owner, run in groupby(owners))


class Traces:
    """The last trace of each session under each fingerprint."""

    def __init__(self) -> None:
        self._of: OrderedDict[tuple[str, str], Known] = OrderedDict()
        """Changed on the event loop; whoever reads may be on another thread, hence the copies below."""
        self._tokens = 0

    def remember(self, known: Known) -> None:
        """Keep it as its session's trace under its fingerprint."""
        key = known.session or "", known.fingerprint
        self._drop(key)
        self._of[key] = known
        self._tokens += len(known.trace.path.tokens)
        own = [k for k in self._of if k[0] == key[0]]
        for old in own[:-MOST_FINGERPRINTS]:
            self._drop(old)
        while self._tokens > MOST_TOKENS and len(self._of) > 1:
            self._drop(next(iter(self._of)))

    def forget(self, session: str) -> None:
        """Drop a session's traces."""
        for key in [k for k in self._of if k[0] == session]:
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        old = self._of.pop(key, None)
        if old is not None:
            self._tokens -= len(old.trace.path.tokens)

    def paths(self, fingerprint: str) -> list[Path]:
        """Return the path of each session under a fingerprint."""
        return [known.trace.path for known in list(self._of.values()) if known.fingerprint == fingerprint]

    def all_of(self, session: str | None) -> list[Known]:
        """Return a session's traces, oldest first."""
        return [known for key, known in list(self._of.items()) if session is not None and key[0] == session]

    def of_session(self, session: str | None, fingerprint: str) -> Known | None:
        """Return the trace of a session under a fingerprint."""
        return None if session is None else self._of.get((session, fingerprint))

    def newest_of(self, session: str | None) -> Known | None:
        """Return a session's newest trace under whatever fingerprint."""
        return next((known for key, known in reversed(list(self._of.items())) if key[0] == session), None)

    def alike(self, fingerprint: str, session: str | None, target: Sequence[Entry]) -> list[Known]:
        """Return traces that `target` may be an edit of: its session's own, then newest first those that begin alike."""
        own = self.of_session(session, fingerprint)
        found = [own] if own is not None else []
        heads = [entry.tokens for entry in target[:2]]
        for known in reversed(list(self._of.values())):
            if len(found) >= _CANDIDATES:
                break
            entries = known.trace.entries
            same_model = known.fingerprint == fingerprint
            if known is not own and same_model and any(e.tokens in heads for e in entries[:2]):
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


def same_call(a: ToolCall, b: ToolCall) -> bool:
    """Tell if two calls are the same, their arguments perhaps written otherwise."""
    return _meaning(a) == _meaning(b)


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


def _calls(message: Message) -> list[tuple[str, str, str]]:
    return [_meaning(call) for call in message.tool_calls]


def _meaning(call: ToolCall) -> tuple[str, str, str]:
    """Return what a call says; 1, 1.0 and true are different there, though they are equal in Python."""
    try:
        arguments = json.dumps(json.loads(call.arguments), sort_keys=True)
    except (ValueError, RecursionError):
        arguments = call.arguments
    return call.id, call.name, arguments
