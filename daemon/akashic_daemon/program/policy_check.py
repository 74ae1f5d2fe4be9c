"""What is wrong, or likely not meant, in a policy: findings as values, for `policy check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from akashic_daemon.errors import ScriptError
from akashic_daemon.program.conditions import Condition
from akashic_daemon.program.policy import Policy, Rule, parse_policy
from akashic_daemon.program.selectors import ByNumber, BySlice, ByTokens, Selector, Sum, bind, names

_MOST = 1 << 62
_SAMPLE_WINDOW_TOKENS = 8192
_COUNT_OF_KIND = {
    "messages": "messages",
    "system": "system_messages",
    "user": "user_messages",
    "assistant": "assistant_messages",
    "tool": "tool_results",
    "thinking": "thinking_messages",
    "memory": "recalled_messages",
}
_NEVER_MORE_THAN = (
    ("tool_results", "messages"),
    ("user_messages", "messages"),
    ("assistant_messages", "messages"),
    ("system_messages", "messages"),
    ("thinking_messages", "messages"),
    ("recalled_messages", "messages"),
    ("visible_tokens", "next_position"),
    ("free_positions", "next_position"),
)


class Severity(StrEnum):
    """Whether a policy can't be used, or may do other than meant."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, and where; line 0 is the whole file."""

    line: int
    severity: Severity
    message: str


def check_policy(source: str, *, window_tokens: int = _SAMPLE_WINDOW_TOKENS) -> list[Finding]:
    """Return what is wrong with a policy's text, judged with its own parameters in a window of that size."""
    try:
        policy = parse_policy(source)
    except ScriptError as error:
        return [Finding(int(error.details.get("line", 0)), Severity.ERROR, str(error))]
    found = list(_parameters(policy, window_tokens))
    if not policy.rules and policy.name != "none":
        found.append(Finding(0, Severity.WARNING, f"policy {policy.name} has no rules, so it does nothing"))
    values = {name: amount.tokens(window_tokens) for name, amount in policy.parameters}
    for rule in policy.rules:
        found.extend(_rule(rule, values))
    return found


def _parameters(policy: Policy, window_tokens: int) -> Iterator[Finding]:
    used: set[str] = set()
    for rule in policy.rules:
        used |= set() if rule.selector is None else names(rule.selector)
        used |= {n for c in rule.conditions if isinstance(c.value, Sum) for n in c.value.names}
    for name, amount in policy.parameters:
        if name not in used:
            yield Finding(0, Severity.WARNING, f"parameter {name} is never used")
        if amount.percent and amount.value > 100:
            yield Finding(0, Severity.ERROR, f"parameter {name} is {amount}, more than the window of {window_tokens}")


def _rule(rule: Rule, values: Mapping[str, int]) -> Iterator[Finding]:
    bounds: dict[str, tuple[int, int]] = {}
    for condition in rule.conditions:
        low, high = bounds.get(condition.count, (0, _MOST))
        at_least, at_most = _bounds(condition.bound(values))
        bounds[condition.count] = (max(low, at_least), min(high, at_most))
    never = _never(bounds)
    if never:
        yield Finding(rule.line, Severity.ERROR, f"{rule}: the trigger is never true: {never}")
        return
    if all(bound == (0, _MOST) for bound in bounds.values()):
        yield Finding(rule.line, Severity.WARNING, f"{rule}: the trigger is always true")
    if rule.selector is None:
        if not {"next_position", "position", "free_positions"} & bounds.keys():
            yield Finding(rule.line, Severity.WARNING, f"{rule}: repos without a condition on positions")
        return
    selector = bind(rule.selector, values)
    yield from _protected(rule, selector)
    yield from _empty(rule, selector, bounds)


def _bounds(condition: Condition) -> tuple[int, int]:
    value = condition.value
    assert isinstance(value, int)
    return {
        "<": (0, value - 1),
        "<=": (0, value),
        "==": (value, value),
        "!=": (0, _MOST),
        ">=": (value, _MOST),
        ">": (value + 1, _MOST),
    }[condition.comparison]


def _never(bounds: Mapping[str, tuple[int, int]]) -> str:
    for count, (low, high) in bounds.items():
        if low > high:
            return f"{count} would have to be at least {low} and at most {high}"
    for part, whole in _NEVER_MORE_THAN:
        low, high = bounds.get(part, (0, _MOST))[0], bounds.get(whole, (0, _MOST))[1]
        if low > high:
            return f"{part} would have to be at least {low}, but {whole} at most {high}"
    return ""


def _protected(rule: Rule, selector: Selector) -> Iterator[Finding]:
    if isinstance(selector, ByNumber | ByTokens):
        yield Finding(
            rule.line, Severity.WARNING, f"{rule}: numbers mean other messages in each history, and protected ones stay"
        )
        return
    if selector.kind == "system":
        yield Finding(rule.line, Severity.ERROR, f"{rule}: system messages are protected, so it never drops anything")
    elif isinstance(selector, BySlice):
        whole = not selector.sliced and selector.index is None
        to_newest = whole or selector.index == -1 or (selector.sliced and selector.end is None)
        if selector.kind in {"user", "messages"} and to_newest:
            only = selector.index == -1 or selector.start == -1
            effect = "so it drops nothing" if only and selector.kind == "user" else "and stays"
            yield Finding(rule.line, Severity.WARNING, f"{rule}: the newest user message is protected, {effect}")
        from_oldest = whole or selector.index == 0 or (selector.sliced and selector.start in {None, 0})
        if selector.kind == "messages" and from_oldest:
            yield Finding(rule.line, Severity.WARNING, f"{rule}: a system message in it is protected, and stays")


def _empty(rule: Rule, selector: Selector, bounds: Mapping[str, tuple[int, int]]) -> Iterator[Finding]:
    """Find a slice that takes nothing when its trigger first holds, e.g. `tool[:-20]` from 13 results on."""
    if not isinstance(selector, BySlice) or not selector.sliced:
        return
    low, high = bounds.get(_COUNT_OF_KIND[selector.kind], (0, 0))
    start, end = selector.start, selector.end
    assert start is None or isinstance(start, int)
    assert end is None or isinstance(end, int)
    if not low or _taken(low, start, end):
        return
    if high < _MOST and not _taken(high, start, end):
        yield Finding(rule.line, Severity.ERROR, f"{rule}: {selector} takes nothing whenever the trigger holds")
    else:
        yield Finding(rule.line, Severity.WARNING, f"{rule}: holds from {low} on, when {selector} takes nothing yet")


def _taken(count: int, start: int | None, end: int | None) -> int:
    return len(range(count)[start:end])
