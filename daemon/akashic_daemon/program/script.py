"""Reads op scripts, policies and selectors: text in the language of ops.lark to frozen values.

Pure: a file that a script names is opened by whoever runs it. lark is imported on first use, as no other command needs it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from akashic_daemon.errors import ScriptError
from akashic_daemon.program.conditions import COUNTS, RUN_COUNTS, Condition
from akashic_daemon.program.grammar import error_at, nearest, parse_tree
from akashic_daemon.program.selectors import (
    ByAge,
    ByNumber,
    BySlice,
    ByTokens,
    Number,
    Selector,
    Sum,
    bind,
    names,
)
from akashic_daemon.trajectory.message import Role


@dataclass(frozen=True, slots=True)
class FromFile:
    """The text of a file, named relative to the folder the script runs in."""

    path: str


Content = str | FromFile


@dataclass(frozen=True, slots=True)
class Step:
    """One statement; `line` counts from 1, `text` is its first line as written."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class AppendStep(Step):
    """Append a message."""

    role: Role
    content: Content


@dataclass(frozen=True, slots=True)
class DropStep(Step):
    """Drop what the selector means here."""

    selector: Selector


@dataclass(frozen=True, slots=True)
class ReplaceStep(Step):
    """Put a text in the place of each message that the selector means here."""

    selector: Selector
    content: Content


@dataclass(frozen=True, slots=True)
class ReposStep(Step):
    """Renumber what is visible."""


@dataclass(frozen=True, slots=True)
class GenerateStep(Step):
    """Let the model answer; None leaves the limit to the settings."""

    limit_tokens: int | None


@dataclass(frozen=True, slots=True)
class CheckpointStep(Step):
    """Remember this state by name."""

    name: str


@dataclass(frozen=True, slots=True)
class RollbackStep(Step):
    """Go back to a checkpoint."""

    name: str


@dataclass(frozen=True, slots=True)
class BranchStep(Step):
    """Go on in a new session of that name; the old one stays as it is."""

    name: str


@dataclass(frozen=True, slots=True)
class AssertStep(Step):
    """Stop with both values unless every condition holds."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class ShowStep(Step):
    """Draw the active cache."""


Statement = (
    AppendStep
    | DropStep
    | ReplaceStep
    | ReposStep
    | GenerateStep
    | CheckpointStep
    | RollbackStep
    | BranchStep
    | AssertStep
    | ShowStep
)


def parse_script(source: str) -> list[Statement]:
    """Read a script. Raises ScriptError with line, column, what was found and what was expected."""
    tree = parse_tree(source, "script")
    lines = source.splitlines()
    known: set[str] = set()
    out: list[Statement] = []
    for node in tree.children:
        step = _statement(node, lines[node.meta.line - 1].strip())
        if isinstance(step, CheckpointStep):
            known.add(step.name)
        elif isinstance(step, RollbackStep) and step.name not in known:
            raise error_at(node.children[0], f"no checkpoint {step.name!r} stands above", nearest(step.name, known))
        out.append(step)
    return out


def parse_selector(text: str) -> Selector:
    """Read one selector without free names. Raises ScriptError."""
    node = parse_tree(text, "selector_only").children[0]
    return _bound(node)


def _statement(node: Any, text: str) -> Statement:
    kind, parts, at = node.data, node.children, (node.meta.line, text)
    if kind == "append":
        return AppendStep(*at, Role(str(parts[0])), content_of(parts[1]))
    if kind == "drop":
        return DropStep(*at, _bound(parts[0]))
    if kind == "replace":
        selector = _bound(parts[0])
        if isinstance(selector, ByTokens) or (isinstance(selector, BySlice) and selector.kind == "thinking"):
            raise error_at(parts[0], f"{selector} can't be replaced", "only whole messages can; it can be dropped")
        return ReplaceStep(*at, selector, content_of(parts[1]))
    if kind == "generate":
        return GenerateStep(*at, None if parts[0] is None else int(parts[0]))
    if kind == "check":
        return AssertStep(*at, tuple(_known(c) for c in parts[0].children))
    if kind == "checkpoint":
        return CheckpointStep(*at, str(parts[0]))
    if kind == "rollback":
        return RollbackStep(*at, str(parts[0]))
    if kind == "branch":
        return BranchStep(*at, str(parts[0]))
    return ReposStep(*at) if kind == "repos" else ShowStep(*at)


def content_of(node: Any) -> Content:
    """Return the text that stands there. Raises ScriptError on a broken escape."""
    token = node.children[0]
    if node.data == "heredoc":
        return "\n".join(str(token).split("\n")[1:-1])
    try:
        text = str(json.loads(str(token), strict=False))
    except json.JSONDecodeError as error:
        raise error_at(token, f"the text has an escape that doesn't exist: {error.msg}", "write \\\\ for \\") from error
    return FromFile(text) if node.data == "from_file" else text


def condition_of(node: Any, allowed: tuple[str, ...]) -> Condition:
    """Return a comparison. Raises ScriptError when its count isn't one of `allowed`."""
    name = str(node.children[0])
    if name not in allowed:
        hint = nearest(name, allowed) or f"counts are {', '.join(allowed)}"
        raise error_at(node.children[0], f"there is no count {name!r}", hint)
    return Condition(name, str(node.children[1]), _sum(node.children[2]))


def selector_of(node: Any) -> Selector:
    """Return a selector, whose numbers may be names of parameters."""
    kind, parts = node.data, node.children
    if kind == "number":
        return ByNumber(_sum(parts[0]), _sum(parts[0]))
    if kind == "numbers":
        return ByNumber(_sum(parts[0]), _sum(parts[1]))
    if kind == "tokens":
        return ByTokens(_sum(parts[0]), _sum(parts[1]))
    name = str(parts[0].children[0]) if parts[0].data == "role" else str(parts[0].data)
    if kind == "older":
        return ByAge(name, _sum(parts[1]))
    if kind == "one":
        return BySlice(name, index=_sum(parts[1]))
    if kind == "part":
        start, end = (None if part is None else _sum(part) for part in parts[1:])
        return BySlice(name, start=start, end=end, sliced=True)
    return BySlice(name)


def _sum(node: Any) -> Number:
    sign, terms = 1, list[tuple[int, int | str]]()
    for token in node.children:
        if token.type in {"PLUS", "MINUS"}:
            sign = -1 if token.type == "MINUS" else 1
            continue
        terms.append((sign, int(token) if token.type == "INT" else str(token)))
        sign = 1
    total = Sum(tuple(terms))
    # -0 keeps its sign until it is bound: as an end of a slice it means the end of the list.
    return total if total.names or terms == [(-1, 0)] else total.value({})


def _bound(node: Any) -> Selector:
    selector = selector_of(node)
    free = names(selector)
    if free:
        raise error_at(node, f"{sorted(free)[0]!r} has no value here", "parameters belong to policies; write a number")
    bound = bind(selector, {})
    if isinstance(bound, ByNumber | ByTokens):
        _check_order(node, bound)
    return bound


def _check_order(node: Any, selector: ByNumber | ByTokens) -> None:
    assert isinstance(selector.first, int)
    assert isinstance(selector.last, int)
    if selector.last < selector.first:
        raise error_at(node, f"the range ends before it starts: {selector.first}..{selector.last}", None)
    if selector.first < 0:
        raise error_at(node, f"{selector} counts from the end", "numbers start at 0; for the newest write messages[-1]")


def _known(node: Any) -> Condition:
    condition = condition_of(node, (*COUNTS, *RUN_COUNTS))
    if isinstance(condition.value, Sum) and condition.value.names:
        name = sorted(condition.value.names)[0]
        raise error_at(node.children[2], f"{name!r} has no value here", "parameters belong to policies; write a number")
    return condition.bound({})


__all__ = ["ScriptError", "Statement", "condition_of", "content_of", "parse_script", "parse_selector", "selector_of"]
