"""A session's active cache, worked out from its messages and its program, and drawn as data.

What it says holds for the next token at the session's end: a policy's rules are asked at the answers that were given,
not yet at the one that would come. Pure CPU work; runs off the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from akashic_daemon.engine.base import Engine
from akashic_daemon.errors import Unsupported
from akashic_daemon.program.layout import Layout, preamble
from akashic_daemon.program.ledger import Ledger
from akashic_daemon.program.message_ops import MessageOp, ReplaceMessage, ReplaceSelected, ReposAt
from akashic_daemon.program.plan import empty_layout
from akashic_daemon.program.policy import Policy
from akashic_daemon.program.weave import Compiled, Rules, trace
from akashic_daemon.program.wire import to_stored
from akashic_daemon.protocol.context import ContextMessage, ContextOp, ContextView, MessageState
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.trajectory.prompt import Prompt, PromptBuilder, RecallSampled
from akashic_daemon.transcript.content import without_lone_surrogates

LABEL_CHARS = 60
_CHARS_PER_TOKEN_AT_MOST = 64


@dataclass(frozen=True, slots=True)
class Program:
    """What is asked of a session's cache. `own_policy`: the session names it, else the settings do."""

    ops: tuple[MessageOp, ...]
    policy: Policy
    own_policy: bool = False
    since: int = 0
    edit_reuse: Literal["exact", "drop"] | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """A session's messages laid out, and what its program did to them."""

    messages: tuple[Message, ...]
    program: Program
    layout: Layout
    compiled: Compiled
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Drawer:
    """Lays sessions out for one loaded model. answer_tokens: room that is kept when a history outgrows the window."""

    engine: Engine
    builder: PromptBuilder
    recall: RecallSampled
    answer_tokens: int

    def context(self, messages: Sequence[Message], program: Program, *, window_start: int = 0) -> Context:
        """Return the context. Raises BadRequest, naming the operation, when one can't be carried out."""
        kept = tuple(messages)
        if not kept:
            return Context(kept, program, empty_layout(), *trace(empty_layout(), program.ops))
        window = self.engine.model.window_tokens
        limit = max(window - self.answer_tokens, window // 2)
        if sum(len(m.content) for m in kept) <= limit * _CHARS_PER_TOKEN_AT_MOST:
            whole = self._traced(kept, program, self.builder.build(kept, recall=self.recall))
            if whole.compiled.next_position < window:
                return whole
        fitted = self.builder.fit(kept, limit_tokens=limit, first_message=window_start, recall=self.recall)
        return self._traced(kept, program, fitted)

    def _traced(self, messages: tuple[Message, ...], program: Program, prompt: Prompt) -> Context:
        head = self.builder.bos_tokens
        if messages[0].role is Role.USER:
            head += self.builder.count(preamble(self.builder.text, messages[0]))
        layout = Layout.of(messages, prompt, head_tokens=head)
        rules = program.policy.bound(self.engine.model.window_tokens)
        compiled, ledger = trace(
            layout,
            program.ops,
            rules=None if rules is None else _before(rules, len(messages)),
            since=program.since,
            render=lambda index, text: self.builder.replaced(messages, index, text),
        )
        return Context(messages, program, layout, compiled, ledger)

    def require(self, ops: Sequence[MessageOp]) -> None:
        """Raise Unsupported, naming operation and reason, for what the model's engine can't do."""
        able = self.engine.capabilities
        for op in ops:
            wanted = ["drop"]
            if isinstance(op, ReposAt):
                wanted = ["repos"]
            elif isinstance(op, ReplaceMessage | ReplaceSelected):
                wanted.append("range_export")
            for name in wanted:
                if not getattr(able, name):
                    raise Unsupported(
                        f"{op.label} ({op}): the model {self.engine.model.name} can't {name} KV: "
                        f"{able.why_not.get(name, 'unknown')}",
                        hint="`akashic model show` lists what each model can do",
                    )

    def count(self, role: Role, text: str) -> int:
        """Return how many tokens a message would have in the middle of a conversation, role marks included."""
        before = {
            Role.SYSTEM: [],
            Role.USER: [Message(Role.USER, "x"), Message(Role.ASSISTANT, "x")],
        }.get(role, [Message(Role.USER, "x")])
        prompt = self.builder.build([*before, Message(role, text)], add_generation_prompt=False)
        return sum(1 for owner in prompt.message_at if owner == len(before))


def _before(rules: Rules, count: int) -> Rules:
    """Ask the rules only before answers that exist."""
    return lambda ledger: rules(ledger) if len(ledger.entries) < count else ()


def from_message(rules: Rules, since: int) -> Rules:
    """Ask the rules only from message `since` on."""
    return lambda ledger: rules(ledger) if len(ledger.entries) >= since else ()


def added_ops(context: Context, new: Sequence[MessageOp]) -> list[ContextOp]:
    """Return what of the program came from `new`, by their labels."""
    labels = {op.label for op in new}
    return [
        _op(op, tokens)
        for op, tokens in zip(context.compiled.ops, context.compiled.effects, strict=True)
        if op.label in labels
    ]


def resolved(context: Context, new: Sequence[MessageOp]) -> tuple[MessageOp, ...]:
    """Return the same as operations, to be stored."""
    labels = {op.label for op in new}
    return tuple(replace(op, label="") for op in context.compiled.ops if op.label in labels)


def view(session: str, model: str, window_tokens: int, context: Context) -> ContextView:
    """Draw a context."""
    compiled, ledger, program = context.compiled, context.ledger, context.program
    replaced = {op.message for op in compiled.ops if isinstance(op, ReplaceMessage)}
    return ContextView(
        session=session,
        model=model,
        window_tokens=window_tokens,
        messages=[_message(context, index, index in replaced) for index in range(len(context.messages))],
        visible_tokens=ledger.visible_tokens,
        next_position=ledger.next_position,
        dropped_tokens=compiled.dropped_tokens + compiled.replaced_tokens,
        policy=str(program.policy),
        own_policy=program.own_policy,
        edit_reuse=program.edit_reuse,
        policy_since=program.since,
        ops=[_op(op, tokens) for op, tokens in zip(compiled.ops, compiled.effects, strict=True)],
        notes=list(compiled.notes),
    )


def _message(context: Context, index: int, replaced: bool) -> ContextMessage:
    entry, message, ledger = context.layout.messages[index], context.messages[index], context.ledger
    visible = ledger.tokens_of(index)
    first, end = entry.group
    return ContextMessage(
        index=index,
        role=message.role.value,
        label=label_of(message),
        tokens=entry.tokens,
        visible_tokens=visible,
        state=_state(context, index, replaced),
        positions=list(ledger.position_ranges(index)),
        group=(first, end) if end - first > 1 else None,
    )


def _state(context: Context, index: int, replaced: bool) -> MessageState:
    entry = context.layout.messages[index]
    if not entry.present:
        return "left out"
    if not context.ledger.is_visible(index):
        return "dropped"
    if replaced:
        return "replaced"
    return "partly dropped" if context.ledger.tokens_of(index) < entry.tokens else "visible"


def label_of(message: Message) -> str:
    """Return the first words of a message, on one line; of one that only calls tools, their names."""
    text = " ".join(message.content[: 4 * LABEL_CHARS].split())
    calls = ", ".join(call.name for call in message.tool_calls)
    return without_lone_surrogates((text or (f"calls {calls}" if calls else ""))[:LABEL_CHARS])


def _op(op: MessageOp, tokens: int) -> ContextOp:
    by_policy = op.label.startswith("policy ")
    assert op.at is not None
    return ContextOp(text=str(op), at=op.at, by="policy" if by_policy else "session", tokens=tokens, op=to_stored(op))
