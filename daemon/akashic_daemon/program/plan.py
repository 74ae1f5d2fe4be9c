"""A dry run: what each statement of a script would do to a history, without a model.

The counts are those that a real run has, except for answers: how long they get is assumed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from akashic_daemon.errors import BadRequest, ScriptError
from akashic_daemon.program.conditions import COUNTS, failures
from akashic_daemon.program.layout import Layout, MessageTokens
from akashic_daemon.program.ledger import Ledger
from akashic_daemon.program.message_ops import (
    DropMessages,
    DropSelected,
    DropTokens,
    MessageOp,
    ReplaceMessage,
    ReplaceSelected,
    ReposAt,
    by_number,
)
from akashic_daemon.program.script import (
    AppendStep,
    AssertStep,
    BranchStep,
    CheckpointStep,
    Content,
    DropStep,
    FromFile,
    GenerateStep,
    ReplaceStep,
    ReposStep,
    RollbackStep,
    ShowStep,
    Statement,
)
from akashic_daemon.program.weave import Compiled, Rules, trace
from akashic_daemon.trajectory.message import Role

ASSUMED_ANSWER_TOKENS = 64
"""How long an answer is taken to be when `generate` doesn't say."""

Count = Callable[[Role, str], int]
"""(role, text) -> how many tokens the message has, role marks included."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """What one statement would do, and what is visible after it.

    saved_tokens: what would be computed again if the message's text were edited instead. failures: conditions of an
    assertion that don't hold, with both values.
    """

    line: int
    text: str
    appended_tokens: int = 0
    dropped_tokens: int = 0
    moved_tokens: int = 0
    saved_tokens: int = 0
    messages: int = 0
    visible_tokens: int = 0
    next_position: int = 0
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """All statements; ops is the program that the history would have then."""

    steps: tuple[PlanStep, ...]
    ops: tuple[MessageOp, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """Every assertion that doesn't hold, by line."""
        return tuple(f"line {step.line}: {failure}" for step in self.steps for failure in step.failures)


@dataclass(frozen=True, slots=True)
class _State:
    layout: Layout
    ops: tuple[MessageOp, ...]


def simulate(
    statements: Iterable[Statement],
    layout: Layout,
    *,
    count: Count,
    read: Callable[[str], str],
    ops: Sequence[MessageOp] = (),
    rules: Rules | None = None,
    answer_tokens: int = ASSUMED_ANSWER_TOKENS,
) -> Plan:
    """Run a script over `layout`, whose program so far is `ops`; `rules` are asked before each answer.

    read: gives the text of a file that the script names. Raises ScriptError, with the line, on what can't be done.
    """
    return _Simulation(layout, tuple(ops), count, read, rules, answer_tokens).run(statements)


class _Simulation:
    def __init__(
        self,
        layout: Layout,
        ops: tuple[MessageOp, ...],
        count: Count,
        read: Callable[[str], str],
        rules: Rules | None,
        answer_tokens: int,
    ) -> None:
        self._state = _State(_open_ended(layout), ops)
        self._count, self._read, self._rules, self._answer_tokens = count, read, rules, answer_tokens
        self._checkpoints: dict[str, _State] = {}

    def run(self, statements: Iterable[Statement]) -> Plan:
        before, ledger = self._traced()
        steps: list[PlanStep] = []
        for statement in statements:
            try:
                appended, notes = self._do(statement)
                after, ledger = self._traced()
            except BadRequest as error:
                where = f"line {statement.line} ("
                said = (
                    error.message if error.message.startswith(where) else f"{where}{statement.text}): {error.message}"
                )
                raise ScriptError(said, hint=error.hint, line=statement.line) from error
            failed, unknown = _judged(statement, ledger)
            new_notes = tuple(note for note in after.notes if note not in before.notes)
            steps.append(
                PlanStep(
                    statement.line,
                    statement.text,
                    appended,
                    max(
                        0, after.dropped_tokens + after.replaced_tokens - before.dropped_tokens - before.replaced_tokens
                    ),
                    max(0, after.repos_tokens - before.repos_tokens),
                    _saved(before, after, ledger),
                    len(ledger.visible["messages"]),
                    ledger.visible_tokens,
                    ledger.next_position,
                    failed,
                    (*notes, *new_notes, *unknown),
                )
            )
            before = after
        return Plan(tuple(steps), self._state.ops)

    def _traced(self, rules: Rules | None = None) -> tuple[Compiled, Ledger]:
        compiled, ledger = trace(self._state.layout, self._state.ops, rules=rules, render=self._rendered)
        self._state = replace(self._state, ops=compiled.ops)
        return compiled, ledger

    def _rendered(self, message: int, text: str) -> Sequence[int]:
        return (0,) * self._count(self._state.layout.messages[message].role, text)

    def _do(self, statement: Statement) -> tuple[int, tuple[str, ...]]:
        """Carry out a statement; return how many tokens it appends, and notes."""
        at, label = len(self._state.layout.messages), f"line {statement.line}"
        if isinstance(statement, AppendStep):
            return self._append(statement.role, self._count(statement.role, self._text(statement.content))), ()
        if isinstance(statement, GenerateStep):
            return self._generate(statement)
        if isinstance(statement, DropStep):
            self._ask(DropSelected(statement.selector, at=at, label=label))
        elif isinstance(statement, ReplaceStep):
            self._ask(ReplaceSelected(statement.selector, self._text(statement.content), at=at, label=label))
        elif isinstance(statement, ReposStep):
            self._ask(ReposAt(at=at, label=label))
        elif isinstance(statement, CheckpointStep):
            self._checkpoints[statement.name] = self._state
        elif isinstance(statement, RollbackStep):
            self._state = self._checkpoints[statement.name]
        elif isinstance(statement, BranchStep):
            return 0, (f"goes on as session {statement.name}",)
        else:
            assert isinstance(statement, AssertStep | ShowStep)
        return 0, ()

    def _ask(self, op: MessageOp) -> None:
        exact = by_number(op, len(self._state.layout.messages))
        self._state = replace(self._state, ops=(*self._state.ops, *exact))

    def _text(self, content: Content) -> str:
        return self._read(content.path) if isinstance(content, FromFile) else content

    def _append(self, role: Role, tokens: int) -> int:
        self._state = replace(self._state, layout=_grown(self._state.layout, role, tokens))
        return tokens

    def _generate(self, statement: GenerateStep) -> tuple[int, tuple[str, ...]]:
        if self._rules is not None:
            self._traced(self._rules)
        tokens = statement.limit_tokens or self._answer_tokens
        return self._append(Role.ASSISTANT, tokens), (f"an answer of {tokens} tokens is assumed",)


def _judged(statement: Statement, ledger: Ledger) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not isinstance(statement, AssertStep):
        return (), ()
    unknown = [c.count for c in statement.conditions if c.count not in COUNTS]
    notes = tuple(f"{name} is known in a real run only; not checked" for name in unknown)
    found = failures(statement.conditions, lambda name: COUNTS[name](ledger) if name in COUNTS else None)
    return tuple(found), notes


def _saved(before: Compiled, after: Compiled, ledger: Ledger) -> int:
    """Return the visible tokens behind the first message that newly lost its text."""
    lost: list[int] = []
    for op in after.ops[len(before.ops) :]:
        if isinstance(op, DropMessages):
            lost.extend(op.messages)
        elif isinstance(op, ReplaceMessage):
            lost.append(op.message)
        elif isinstance(op, DropTokens):
            lost.extend(m.index for m in ledger.entries if m.ranges and m.ranges[0][1] > op.ranges[0][0])
    return ledger.tokens_after(min(lost)) if lost else 0


def _open_ended(layout: Layout) -> Layout:
    """Return the layout with one stand-in token for the generation prompt."""
    count = len(layout.messages)
    return replace(
        layout,
        tokens=layout.tokens[: layout.end] + array("i", [0]),
        message_at=layout.message_at[: layout.end] + array("i", [count]),
    )


def _grown(layout: Layout, role: Role, tokens: int) -> Layout:
    index, start = len(layout.messages), layout.end
    message = MessageTokens(index, role, ((start, start + tokens),) if tokens else (), (index, index + 1))
    return Layout(
        layout.tokens[:start] + array("i", [0]) * (tokens + 1),
        layout.message_at[:start] + array("i", [index]) * tokens + array("i", [index + 1]),
        (*layout.messages, message),
        layout.head_tokens,
        start + tokens,
        (*layout.starts, start),
    )


def empty_layout() -> Layout:
    """Return the layout of no messages, for a script that begins a history."""
    return Layout(array("i"), array("i"), (), 0, 0)
