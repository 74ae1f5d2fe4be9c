"""Counts that scripts assert and policies wait for, and comparisons of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from akashic_daemon.program.ledger import Ledger
from akashic_daemon.program.selectors import Number, Sum

COUNTS: Mapping[str, Callable[[Ledger], int]] = {
    "messages": lambda ledger: len(ledger.visible["messages"]),
    "system_messages": lambda ledger: len(ledger.visible["system"]),
    "user_messages": lambda ledger: len(ledger.visible["user"]),
    "assistant_messages": lambda ledger: len(ledger.visible["assistant"]),
    "tool_results": lambda ledger: len(ledger.visible["tool"]),
    "thinking_messages": lambda ledger: len(ledger.visible["thinking"]),
    "recalled_messages": lambda ledger: len(ledger.visible["memory"]),
    "visible_tokens": lambda ledger: ledger.visible_tokens,
    "next_position": lambda ledger: ledger.next_position,
    "position": lambda ledger: ledger.next_position,
    "free_positions": lambda ledger: ledger.next_position - ledger.visible_tokens,
}
"""What is visible there, by name; free_positions is what a repos would win."""

RUN_COUNTS = ("reused", "computed")
"""Tokens of the last `generate`; only a script that really runs knows them."""

COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


Counted = Callable[[str], int | None]
"""Gives a count by name; None when it isn't known."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A count compared with a number, e.g. `tool_results > 12`."""

    count: str
    comparison: str
    value: Number

    def __str__(self) -> str:
        return f"{self.count} {self.comparison} {self.value}"

    def bound(self, parameters: Mapping[str, int]) -> Condition:
        """Return the condition with numbers for names. Raises KeyError on a name that has no value."""
        if not isinstance(self.value, Sum):
            return self
        return Condition(self.count, self.comparison, self.value.value(parameters))

    def holds(self, count: int) -> bool:
        """Tell if a bound condition is true of its count."""
        assert isinstance(self.value, int), f"a condition with a free name: {self}"
        return COMPARISONS[self.comparison](count, self.value)


def failures(conditions: Iterable[Condition], counted: Counted) -> list[str]:
    """Return what an assertion found wrong, with both values; a count that isn't known is not judged."""
    out = []
    for condition in conditions:
        count = counted(condition.count)
        if count is not None and not condition.holds(count):
            out.append(f"{condition.count} is {count}, expected {condition.comparison} {condition.value}")
    return out
