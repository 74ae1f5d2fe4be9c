"""Policies: rules, written in files of the op language, that say what to drop as a history grows.

A policy is asked at each place where an answer was or will be generated, about what is visible there. It keeps no
state: the same history always gives the same program, and a longer one a program that goes on from it. Nothing of a
policy is ever run as code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Any

from akashic_daemon.errors import BadRequest
from akashic_daemon.program.conditions import COUNTS, Condition
from akashic_daemon.program.grammar import error_at, nearest, parse_tree
from akashic_daemon.program.ledger import Ledger
from akashic_daemon.program.message_ops import DropSelected, ReposAt
from akashic_daemon.program.script import condition_of, content_of, selector_of
from akashic_daemon.program.selectors import ByNumber, Selector, Sum, bind, names
from akashic_daemon.program.weave import Rules

_FOLDER = "policies"
_SUFFIX = ".policy"


@dataclass(frozen=True, slots=True)
class Amount:
    """A parameter's value: a number, or a share of the model's window in percent."""

    value: int
    percent: bool = False

    def tokens(self, window_tokens: int) -> int:
        """Return it as a number."""
        return self.value * window_tokens // 100 if self.percent else self.value

    def __str__(self) -> str:
        return f"{self.value}% of window" if self.percent else str(self.value)


@dataclass(frozen=True, slots=True)
class Rule:
    """When all conditions hold: drop what the selector means, or repos when there is none."""

    line: int
    conditions: tuple[Condition, ...]
    selector: Selector | None

    def __str__(self) -> str:
        action = "repos" if self.selector is None else f"drop {self.selector}"
        return f"when {' and '.join(str(c) for c in self.conditions)}: {action}"


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules in the order in which they are asked, and the values of their parameters."""

    name: str
    about: str = ""
    parameters: tuple[tuple[str, Amount], ...] = ()
    rules: tuple[Rule, ...] = ()

    def __str__(self) -> str:
        return self.name + "".join(f"{',' if i else ':'}{n}={a}" for i, (n, a) in enumerate(self.parameters))

    def bound(self, window_tokens: int) -> Rules | None:
        """Return the rules for `weave`, their names replaced by numbers; None when there are none."""
        values = {name: amount.tokens(window_tokens) for name, amount in self.parameters}
        bound = [_BoundRule(self.name, rule, values) for rule in self.rules]

        def rules(ledger: Ledger) -> Iterator[DropSelected | ReposAt]:
            for rule in bound:
                op = rule.asked(ledger)
                if op is not None:
                    yield op

        return rules if bound else None

    def with_parameters(self, given: Mapping[str, Amount]) -> Policy:
        """Return the policy with other values. Raises BadRequest on a parameter it doesn't have."""
        known = dict(self.parameters)
        for name in given:
            if name not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise BadRequest(f"policy {self.name} has no parameter {name!r}", hint=nearest(name, known) or has)
        return replace(self, parameters=tuple((n, given.get(n, a)) for n, a in self.parameters))


class _BoundRule:
    def __init__(self, policy: str, rule: Rule, values: Mapping[str, int]) -> None:
        self._conditions = [(COUNTS[c.count], c.bound(values)) for c in rule.conditions]
        self._op: DropSelected | ReposAt
        label = f"policy {policy}, line {rule.line}"
        selector = None if rule.selector is None else bind(rule.selector, values)
        self._op = ReposAt(label=label) if selector is None else DropSelected(selector, label=label)
        self._numbered = selector if isinstance(selector, ByNumber) else None

    def asked(self, ledger: Ledger) -> DropSelected | ReposAt | None:
        """Return the operation if its time has come."""
        for count, condition in self._conditions:
            if not condition.holds(count(ledger)):
                return None
        numbered = self._numbered
        if numbered is None:
            return self._op
        # A rule names messages that may come later; until then it means those that are there.
        assert isinstance(numbered.first, int)
        assert isinstance(numbered.last, int)
        last = min(numbered.last, len(ledger.entries) - 1)
        here = any(ledger.is_visible(m) for m in range(max(0, numbered.first), last + 1))
        return DropSelected(ByNumber(numbered.first, last), label=self._op.label) if here else None


def builtin_names() -> list[str]:
    """Return the names of the policies that come with akashic."""
    folder = resources.files("akashic_daemon.program").joinpath(_FOLDER)
    return sorted(f.name.removesuffix(_SUFFIX) for f in folder.iterdir() if f.name.endswith(_SUFFIX))


def builtin_source(name: str) -> str:
    """Return the text of a policy that comes with akashic. Raises BadRequest naming the nearest one."""
    known = builtin_names()
    if name not in known:
        raise BadRequest(f"there is no policy {name!r}", hint=nearest(name, known) or f"there are {', '.join(known)}")
    file = resources.files("akashic_daemon.program").joinpath(_FOLDER, name + _SUFFIX)
    return file.read_text(encoding="utf-8")


@lru_cache(maxsize=64)
def load(spec: str) -> Policy:
    """Return a policy that comes with akashic: `NAME` or `NAME:parameter=value,…`, a value like `4` or `75%`."""
    name, given = split_spec(spec)
    return parse_policy(builtin_source(name)).with_parameters(given)


def split_spec(spec: str) -> tuple[str, dict[str, Amount]]:
    """Return name and parameters of `NAME:parameter=value,…`. Raises BadRequest."""
    name, colon, rest = spec.strip().partition(":")
    given: dict[str, Amount] = {}
    for part in rest.split(",") if colon else ():
        parameter, equals, value = (piece.strip() for piece in part.partition("="))
        digits = value.removesuffix("%")
        if not equals or not digits.isascii() or not digits.isdigit() or len(digits) > 12:
            raise BadRequest(f"policy {spec!r}: {part!r} isn't parameter=number", hint="e.g. tool-rolling-drop:keep=4")
        if parameter in given:
            raise BadRequest(f"policy {spec!r} sets {parameter} twice")
        given[parameter] = Amount(int(digits), value.endswith("%"))
    return name, given


def parse_policy(source: str) -> Policy:
    """Read a policy. Raises ScriptError with line and column."""
    name, *nodes = parse_tree(source, "policy_file").children
    about: list[str] = []
    parameters: dict[str, Amount] = {}
    rules: list[Rule] = []
    for node in nodes:
        if node.data == "about":
            about.append(str(content_of(_Quoted(node.children))))
        elif node.data == "rule":
            rules.append(_rule(node, parameters))
        else:
            parameter = str(node.children[0])
            if parameter in parameters:
                raise error_at(node, f"parameter {parameter!r} stands above already", None)
            if parameter in COUNTS:
                raise error_at(node, f"{parameter!r} is a count and can't be a parameter", "choose another name")
            parameters[parameter] = Amount(int(str(node.children[1])), node.data == "window_share")
    return Policy(str(name), " ".join(about), tuple(parameters.items()), tuple(rules))


@dataclass(frozen=True, slots=True)
class _Quoted:
    children: list[Any]
    data: str = "quoted"


def _rule(node: Any, parameters: Mapping[str, Amount]) -> Rule:
    conditions_node, action = node.children
    conditions = tuple(condition_of(c, tuple(COUNTS)) for c in conditions_node.children)
    selector = selector_of(action.children[0]) if action.data == "drop" else None
    for condition, place in zip(conditions, conditions_node.children, strict=True):
        if isinstance(condition.value, Sum):
            _check_names(place, condition.value.names, parameters)
    if selector is not None:
        _check_names(action, names(selector), parameters)
    return Rule(node.meta.line, conditions, selector)


def _check_names(place: Any, used: frozenset[str], parameters: Mapping[str, Amount]) -> None:
    for name in sorted(used):
        if name not in parameters:
            hint = nearest(name, parameters) or f"write `param {name} = NUMBER` above"
            raise error_at(place, f"there is no parameter {name!r}", hint)
