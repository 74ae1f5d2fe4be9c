"""What an answer may look like: the grammar of a request's tools and schema, and how its calls are read. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from akashic_daemon.errors import BadRequest
from akashic_daemon.toolcalls.definitions import is_strict, name_of, parameters_of
from akashic_daemon.toolcalls.gbnf import Rules, either, literal
from akashic_daemon.toolcalls.reader import CallReader
from akashic_daemon.toolcalls.schema import SchemaGrammar
from akashic_daemon.toolcalls.syntax import Shape, Syntax
from akashic_daemon.toolcalls.trigger import Trigger

_NAMED = "tool:"


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How an answer is held to a form, and read.

    syntax: None when no calls are read. grammar: GBNF, None for free text. triggers: what sets the grammar in; without any
    it holds from the start. banned: marks that mustn't be said. most_calls: None for any number.
    """

    syntax: Syntax | None = None
    grammar: str | None = None
    triggers: tuple[Trigger, ...] = ()
    banned: tuple[str, ...] = ()
    most_calls: int | None = None
    notes: tuple[str, ...] = ()

    def reader(self, stop: Sequence[str], *, holds_grammar: bool) -> CallReader:
        """Return what reads the answer; holds_grammar: whether the engine keeps it to the grammar."""
        return CallReader(self.syntax, stop=stop, streams=holds_grammar, most_calls=self.most_calls)


def answer_form(
    syntax: Syntax,
    tools: Sequence[Mapping[str, Any]],
    *,
    tool_choice: str = "auto",
    parallel: bool = True,
    json_schema: Mapping[str, Any] | None = None,
    strict_schema: bool = False,
    thinks: bool = False,
) -> AnswerForm:
    """Return the form that a request asks for. thinks: an answer may begin with a <think> block.

    Raises BadRequest for a choice that no tool meets, and for schemas that can't be used.
    """
    rules = Rules()
    schemas = SchemaGrammar(rules)
    if tool_choice != "none" and tools:
        chosen = _chosen(tools, tool_choice)
        bodies = [_one_call(rules, schemas, syntax, index, tool) for index, tool in chosen]
        bodies = list(dict.fromkeys(bodies))
        is_auto = tool_choice == "auto"
        calls = _calls(rules, syntax, either(bodies), more=parallel, opened=is_auto)
        most = None if parallel else 1
        if not is_auto:
            root = _after_thinking(rules, calls, thinks)
            return AnswerForm(syntax, rules.text(root), most_calls=most, notes=tuple(schemas.notes))
        if json_schema is None:
            triggers = [Trigger(syntax.outer[0] or syntax.opening)]
            if syntax.bare:
                triggers.append(Trigger(f'{{"{syntax.name_key}"', at_start=True))
            return AnswerForm(syntax, rules.text(calls), tuple(triggers), most_calls=most, notes=tuple(schemas.notes))
        answer = schemas.rule(json_schema, "response_format", strict=strict_schema)
        root = _after_thinking(rules, f"( {calls} | {answer} )", thinks)
        return AnswerForm(syntax, rules.text(root), most_calls=most, notes=tuple(schemas.notes))
    if tool_choice not in ("none", "auto"):
        raise BadRequest(
            f"tool_choice asks for {tool_choice.removeprefix(_NAMED)!r}, but the request has no tools",
            hint="send tools, or leave tool_choice out",
            param="tool_choice",
        )
    if json_schema is not None:
        answer = schemas.rule(json_schema, "response_format", strict=strict_schema)
        return AnswerForm(None, rules.text(_after_thinking(rules, answer, thinks)), notes=tuple(schemas.notes))
    return AnswerForm(banned=(syntax.opening,) if tools else ())


def _chosen(tools: Sequence[Mapping[str, Any]], choice: str) -> list[tuple[int, Mapping[str, Any]]]:
    numbered = list(enumerate(tools))
    if not choice.startswith(_NAMED):
        return numbered
    name = choice[len(_NAMED) :]
    found = [(index, tool) for index, tool in numbered if name_of(tool) == name]
    if not found:
        known = ", ".join(name_of(tool) for tool in tools)
        raise BadRequest(
            f"tool_choice asks for the tool {name!r}, which the request doesn't have"[:300],
            hint=f"its tools: {known}"[:300],
            param="tool_choice",
        )
    return found


def _one_call(rules: Rules, schemas: SchemaGrammar, syntax: Syntax, index: int, tool: Mapping[str, Any]) -> str:
    """Return the body of one call of one tool, without the marks around it."""
    schema = parameters_of(tool)
    where = f"tools[{index}].function.parameters"
    if isinstance(schema, Mapping) and "type" not in schema:
        schema = {"type": "object", **schema}
    ws = rules.base("ws")
    name = name_of(tool)
    arguments = schemas.rule(schema, where, strict=is_strict(tool))
    if syntax.shape is Shape.NAMED:
        return rules.add(f"{literal(name + syntax.after_name)} {arguments}")
    key = json.dumps(name, ensure_ascii=False)
    return rules.add(
        f'"{{" {ws} {literal(json.dumps(syntax.name_key))} {ws} ":" {ws} {literal(key)} {ws} "," {ws} '
        f'{literal(json.dumps(syntax.arguments_key))} {ws} ":" {ws} {arguments} {ws} "}}"'
    )


def _calls(rules: Rules, syntax: Syntax, call: str, *, more: bool, opened: bool) -> str:
    """Return the body of one call or, with `more`, several, in their wrapper.

    opened: a bare object is allowed only where the wrapper wasn't opened, hence for what a trigger begins.
    """
    ws = rules.base("ws")
    if syntax.shape is Shape.LIST:
        inner = f'{call} ( {ws} "," {ws} {call} )*' if more else call
        return _wrapped(syntax, f'{ws} "[" {ws} {inner} {ws} "]"', ws)
    one = _wrapped(syntax, f"{ws} {call}", ws)
    if syntax.bare:
        following = f'( {ws} ";" {ws} {call} )*' if more else ""
        head = f"{literal(syntax.opening)}? {ws}" if opened else ""
        return f"{head} {call} {following}".strip()
    several = f"{one} ( {ws} {one} )*" if more else one
    if syntax.outer[0]:
        return f"{literal(syntax.outer[0])} {ws} {several} {ws} {literal(syntax.outer[1])}"
    return several


def _wrapped(syntax: Syntax, inner: str, ws: str) -> str:
    end = f"{literal(syntax.end)} " if syntax.end.strip() else f"{ws} " if syntax.closing else ""
    closing = literal(syntax.closing) if syntax.closing else ""
    return f"{literal(syntax.opening)} {inner} {end}{closing}".strip()


def _after_thinking(rules: Rules, body: str, thinks: bool) -> str:
    if not thinks:
        return body
    inside = rules.add('( [^<] | "<" [^/] )*')
    return f'( "<think>" {inside} "</think>" [ \\n]{{0,4}} )? {body}'
