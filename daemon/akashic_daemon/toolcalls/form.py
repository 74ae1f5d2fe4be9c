"""What an answer may look like: the grammar of a request's tools and schema, and how its calls are read. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from akashic_daemon.errors import BadRequest
from akashic_daemon.toolcalls.definitions import is_strict, name_of, parameters_of
from akashic_daemon.toolcalls.gbnf import Rules, either, literal, text_until
from akashic_daemon.toolcalls.reader import CallReader
from akashic_daemon.toolcalls.schema import SchemaGrammar
from akashic_daemon.toolcalls.syntax import Shape, Syntax
from akashic_daemon.toolcalls.tags import TextParameters, tag_grammar, text_parameters
from akashic_daemon.toolcalls.thought_marks import THINK, ThoughtMarks
from akashic_daemon.toolcalls.trigger import Trigger

_NAMED = "tool:"
Thinking = Literal["none", "may", "must"]
"""Whether an answer may begin with a block of thoughts, or does: its prompt has opened one."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How an answer is held to a form, and read.

    syntax: None when no calls are read. grammar: GBNF, None for free text. triggers: what sets the grammar in; without any
    it holds from the start. banned: marks that mustn't be said. most_calls: None for any number. texts: parameters that are text where calls are written in tags.
    """

    syntax: Syntax | None = None
    grammar: str | None = None
    triggers: tuple[Trigger, ...] = ()
    banned: tuple[str, ...] = ()
    most_calls: int | None = None
    notes: tuple[str, ...] = ()
    texts: TextParameters | None = None

    def reader(self, stop: Sequence[str], *, holds_grammar: bool) -> CallReader:
        """Return what reads the answer; holds_grammar: whether the engine keeps it to the grammar."""
        return CallReader(self.syntax, stop=stop, streams=holds_grammar, most_calls=self.most_calls, texts=self.texts)


def answer_form(
    syntax: Syntax,
    tools: Sequence[Mapping[str, Any]],
    *,
    tool_choice: str = "auto",
    parallel: bool = True,
    json_schema: Mapping[str, Any] | None = None,
    strict_schema: bool = False,
    thinking: Thinking = "none",
    thoughts: ThoughtMarks = THINK,
) -> AnswerForm:
    """Return the form that a request asks for.

    Raises BadRequest for a choice that no tool meets, and for schemas that can't be used.
    """
    rules = Rules()
    schemas = SchemaGrammar(rules)
    if tool_choice not in ("none", "auto") and not tools:
        raise BadRequest(
            f"tool_choice asks for {tool_choice.removeprefix(_NAMED)!r}, but the request has no tools"[:300],
            hint="send tools, or leave tool_choice out",
            param="tool_choice",
        )
    answer = None if json_schema is None else schemas.rule(json_schema, "response_format", strict=strict_schema)
    if not tools or tool_choice == "none":
        banned = (syntax.opening,) if tools else ()
        if answer is None:
            return AnswerForm(banned=banned)
        grammar = rules.text(_after_thinking(rules, answer, thinking, thoughts))
        return AnswerForm(None, grammar, banned=banned, notes=tuple(schemas.notes))
    is_auto = tool_choice == "auto"
    bodies = [_one_call(rules, schemas, syntax, index, tool) for index, tool in _chosen(tools, tool_choice)]
    calls = _calls(rules, syntax, either(bodies), more=parallel, opened=is_auto)
    triggers: list[Trigger] = []
    if is_auto and answer is None:
        triggers.append(Trigger(syntax.outer[0] or syntax.opening))
        if syntax.bare:
            triggers.append(Trigger(f'{{"{syntax.name_key}"', at_start=True))
        root = calls
    else:
        body = calls if answer is None or not is_auto else f"( {calls} | {answer} )"
        root = _after_thinking(rules, body, thinking, thoughts)
    return AnswerForm(
        syntax,
        rules.text(root),
        tuple(triggers),
        most_calls=None if parallel else 1,
        notes=tuple(schemas.notes),
        texts=text_parameters(tools) if syntax.shape is Shape.TAGS else None,
    )


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
    if syntax.shape is Shape.TAGS:
        return tag_grammar(rules, tool, lambda part, key: schemas.rule(part, f"{where}.{key}", strict=is_strict(tool)))
    arguments = schemas.rule(schema, where, strict=is_strict(tool))
    if syntax.shape is Shape.NAMED:
        return rules.add(f"{literal(name + syntax.after_name)} {arguments}")
    key = json.dumps(name, ensure_ascii=False)
    own_id = ""
    if syntax.id_key:
        own_id = f'( {literal(json.dumps(syntax.id_key))} {ws} ":" {ws} "\\"" [0-9]{{1,4}} "\\"" {ws} "," {ws} )?'
    return rules.add(
        f'"{{" {ws} {own_id} {literal(json.dumps(syntax.name_key))} {ws} ":" {ws} {literal(key)} {ws} "," {ws} '
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


def _after_thinking(rules: Rules, body: str, thinking: Thinking, marks: ThoughtMarks) -> str:
    if thinking == "none":
        return body
    if marks.said:
        body = f"{literal(marks.said)} {body}"
    resumed = literal(marks.resume) if marks.resume else "[ \\n]{0,4}"
    thoughts = f"{text_until(rules, marks.closing)} {resumed}"
    return f"( {literal(marks.opening)} {thoughts} )? {body}" if thinking == "may" else f"{thoughts} {body}"
