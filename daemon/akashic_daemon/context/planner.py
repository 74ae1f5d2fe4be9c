"""From a request to the ways in which its prompt may be computed: programs, policies, edited histories.

Lays the prompt out, weaves in what the request, its session's program and its policy ask for, and offers what fits the
window as routes; the step loop takes the cheapest when it admits the request. Pure CPU work; runs off the event loop.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from akashic_daemon.engine.base import Capabilities, ModelInfo
from akashic_daemon.errors import PromptTooLong, Unsupported
from akashic_daemon.program.active import has_tail_gap
from akashic_daemon.program.align import Aligned, Entry, Trace, align, entries_of
from akashic_daemon.program.layout import Layout
from akashic_daemon.program.message_ops import MessageOp, ReplaceMessage, ReplaceSelected, ReposAt
from akashic_daemon.program.path import Path
from akashic_daemon.program.policy import Policy
from akashic_daemon.program.route import Route
from akashic_daemon.program.weave import Compiled, compile_ops
from akashic_daemon.sessions.traces import KEPT_KINDS, Known, Meaning, Traces, same_words
from akashic_daemon.trajectory.message import Message
from akashic_daemon.trajectory.prompt import Prompt

_ANSWER_TOKENS = 256
"""Room kept for an answer of unknown length when positions are near the window's end."""
_WHY = {
    "volatile_text": "what always changes (cache.volatile_text) differs; the older text was kept",
    "arguments_reserialised": "the same tool arguments, written otherwise; the older text was kept",
    "tokenized_otherwise": "the same text, tokenized otherwise",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request says about its context. drop_edits: `edit_reuse=drop`; exact: never anything but exact text."""

    messages: tuple[Message, ...]
    prompt: Prompt
    tools: tuple[Mapping[str, Any], ...] = ()
    ops: tuple[MessageOp, ...] = ()
    policy: Policy | None = None
    policy_since: int = 0
    drop_edits: bool = False
    exact: bool = False
    session: str | None = None
    max_tokens: int | None = None
    render: Callable[[int, str], Sequence[int]] | None = None
    head_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Planned:
    """Routes, best liked first.

    compiled: what operations did, None without any. edited: an alignment, also when it isn't offered as a route; `near`
    is the trace that it continues. altered: messages that operations show otherwise than they were sent.
    """

    routes: tuple[Route, ...]
    target: tuple[Entry, ...]
    compiled: Compiled | None = None
    edited: Aligned | None = None
    near: Known | None = None
    altered: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Room:
    """What a prompt leaves of the window. first_message: from which on the history is shown."""

    window_tokens: int
    prompt_tokens: int
    first_message: int


def too_long(tokens: int, window_tokens: int, *, at_least: bool = False) -> PromptTooLong:
    """Return the error for a prompt that doesn't fit; at_least: it wasn't counted to its end."""
    return PromptTooLong(
        f"the prompt has {'at least ' if at_least else ''}{tokens} tokens and the window {window_tokens}, answer included",
        hint="shorten it, or load a model with a longer window",
        n_prompt_tokens=tokens,
        n_ctx=window_tokens,
    )


class ContextPlanner:
    """Plans for one loaded model."""

    def __init__(self, model: ModelInfo, capabilities: Capabilities, traces: Traces, meaning: Meaning) -> None:
        self._model = model
        self._capabilities = capabilities
        self._traces = traces
        self._meaning = meaning

    def plan(self, ask: Ask) -> Planned:
        """Return the routes. Raises PromptTooLong when no way fits the window, Unsupported and BadRequest of programs."""
        compiled = self._compile(ask)
        if compiled is None:
            target, altered = entries_of(Path(ask.prompt.tokens), ask.prompt.message_at), frozenset[int]()
        else:
            target = entries_of(compiled.path, compiled.message_at)
            altered = _altered(ask.prompt, target)
        routes = []
        if compiled is not None and not ask.exact:
            routes.append(Route.of("program", compiled.path, compiled.message_at, compiled.notes))
        plain = _plain(target, compiled is not None and bool(compiled.path.ops))
        edited, near = self._edited(ask, target, altered)
        routes.append(plain)
        positions_asked = compiled is not None and any(isinstance(op, ReposAt) for op in ask.ops)
        if positions_asked and not ask.exact:
            routes = routes[:1]  # no other way has the positions that were asked for
        offered = ask.drop_edits or (compiled is not None and not ask.exact and _only_grew(near, ask.messages))
        offered = offered and not positions_asked
        older = edited is not None and any(e.kind in KEPT_KINDS for e in edited.edits)
        if edited is not None and offered and (edited.path.ops or older):
            routes.append(Route.of("edited", edited.path, edited.owners, self._told(edited), edited.edits))
        window = self._model.window_tokens
        fitting = [r for r in routes if r.next_position < window]
        if not fitting:
            shortest = min(r.next_position for r in routes)
            raise too_long(shortest, window)
        return Planned(tuple(fitting), target, compiled, edited, near, altered)

    def _compile(self, ask: Ask) -> Compiled | None:
        if not ask.ops and ask.policy is None:
            return None
        rules = ask.policy.bound(self._model.window_tokens) if ask.policy is not None else None
        if not ask.ops and rules is None:
            return None
        self._require(ask)
        layout = Layout.of(ask.messages, ask.prompt, head_tokens=ask.head_tokens)
        compiled = compile_ops(layout, ask.ops, rules=rules, since=ask.policy_since, render=ask.render)
        if not self._capabilities.tail_gap and has_tail_gap(compiled.path):
            raise self._unable("tail_gap", "compute on after a dropped or replaced tail")
        return compiled

    def _require(self, ask: Ask) -> None:
        wanted = ["drop"]
        if any(isinstance(op, ReposAt) for op in ask.ops):
            wanted.append("repos")
        if any(isinstance(op, ReplaceMessage | ReplaceSelected) for op in ask.ops):
            wanted.append("range_export")
        for name in wanted:
            if not getattr(self._capabilities, name):
                raise self._unable(name, f"{name} KV")

    def _unable(self, capability: str, doing: str) -> Unsupported:
        return Unsupported(
            f"the model {self._model.name} can't {doing}: {self._capabilities.why_not.get(capability, 'unknown')}",
            hint="leave cache programs and policies out, or load another model; `akashic model show` lists both",
        )

    def _edited(
        self, ask: Ask, target: tuple[Entry, ...], altered: frozenset[int]
    ) -> tuple[Aligned | None, Known | None]:
        """Return the alignment with the trace that leaves the least to compute."""
        if not self._capabilities.drop or not self._capabilities.tail_gap:
            return None, None
        best: tuple[Aligned, Known] | None = None
        for known in self._traces.alike(self._model.fingerprint, ask.session, target):
            found = align(
                known.trace,
                target,
                same=self._meaning.between(known, ask.messages, altered),
                reserve_tokens=ask.max_tokens or _ANSWER_TOKENS,
                position_limit=self._model.window_tokens,
                may_move=self._capabilities.repos,
            )
            if found is not None and (best is None or found.computed_tokens < best[0].computed_tokens):
                best = found, known
            if found is not None and not found.edits:
                break  # the history only grew: no other trace is nearer
        return (None, None) if best is None else best

    def _told(self, edited: Aligned) -> tuple[str, ...]:
        counts: dict[str, int] = {}
        for edit in edited.edits:
            counts[edit.kind] = counts.get(edit.kind, 0) + 1
        notes = [f"{count} messages: {_WHY[kind]}" for kind, count in counts.items() if kind in _WHY]
        done = ", ".join(f"{count} {kind}" for kind, count in counts.items() if kind not in _WHY)
        if done:
            notes.append(f"edits of history became cache operations: {done}; later KV has still seen the older text")
        return tuple(notes)


def _plain(target: Sequence[Entry], pruned: bool) -> Route:
    tokens, owners = array("i"), array("i")
    for entry in target:
        tokens.extend(entry.tokens)
        owners.extend([entry.owner] * len(entry.tokens))
    notes = ("the pruned text was computed, which was cheaper than computing all and dropping",) if pruned else ()
    return Route("plain", Path(tokens), owners, len(tokens), len(tokens), notes)


def _only_grew(near: Known | None, messages: Sequence[Message]) -> bool:
    """Tell if a request's history goes on from a trace's: then what differs is its program's doing, no edit."""
    return near is not None and len(near.messages) <= len(messages) and all(map(same_words, near.messages, messages))


def _altered(prompt: Prompt, target: Sequence[Entry]) -> frozenset[int]:
    """Return the owners whose visible tokens aren't those of the prompt: replaced, or dropped in part."""
    sent = {entry.owner: entry.tokens for entry in entries_of(Path(prompt.tokens), prompt.message_at)}
    return frozenset(entry.owner for entry in target if sent.get(entry.owner) != entry.tokens)


def trace_of(route: Route, answer: Sequence[int], messages: int) -> Trace:
    """Return what stands computed after an answer to a prompt of so many messages."""
    path = route.path.then(answer)
    owners = route.owners + array("i", [messages] * len(answer))
    return Trace(path, entries_of(path, owners), open_tail=True)
