"""What an OpenAI-shaped request says of tools and of the form of its answer. Each error names the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from akashic_daemon.api.fields import check_count
from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.schedule.events import NAMED_TOOL


def function_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[tuple[Mapping[str, Any], ...], list[str]]:
    """Return the tools that a model can be shown, and names of those of kinds that only hosted services have."""
    functions: list[Mapping[str, Any]] = []
    ignored: list[str] = []
    names: set[str] = set()
    check_count(tools)
    for index, tool in enumerate(tools):
        kind = tool.get("type", "function")
        where = f"tools[{index}].function"
        if kind != "function":
            ignored.append(f"tools[{index}] ({kind})")
            continue
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise BadRequest(f"field {where!r} is no object with a name", hint="name the function", param=where)
        if not isinstance(function.get("parameters") or {}, dict):
            raise BadRequest(f"field {where + '.parameters'!r} is no JSON schema", param=f"{where}.parameters")
        if function["name"] in names:
            raise BadRequest(f"two tools are named {function['name']!r}"[:200], hint="rename one", param=where)
        names.add(function["name"])
        functions.append(tool)
    return tuple(functions), ignored


def choice_of(choice: str | Mapping[str, Any] | None) -> str:
    """Return a `tool_choice` as events have it. Raises BadRequest for what is none."""
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise BadRequest(
                f"field 'tool_choice' is {choice!r}"[:200],
                hint='use "none", "auto", "required" or {"type": "function", "function": {"name": NAME}}',
                param="tool_choice",
            )
        return choice
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else choice.get("name")
    if choice.get("type") != "function" or not isinstance(name, str):
        raise BadRequest(
            "field 'tool_choice' names no function",
            hint='use {"type": "function", "function": {"name": NAME}}',
            param="tool_choice",
        )
    return NAMED_TOOL + name


def schema_of(form: Mapping[str, Any] | None) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the JSON schema that a `response_format` holds the answer to, and whether strictly."""
    kind = None if form is None else form.get("type")
    if form is None or kind == "text":
        return None, False
    if kind == "json_object":
        return {"type": "object"}, False
    if kind != "json_schema":
        raise Unsupported(
            f"field 'response_format.type' is {kind!r}"[:200],
            hint="use text, json_object or json_schema",
            param="response_format",
        )
    wanted = form.get("json_schema")
    schema = wanted.get("schema") if isinstance(wanted, dict) else None
    if not isinstance(wanted, dict) or not isinstance(schema, dict):
        raise BadRequest(
            "field 'response_format.json_schema.schema' is no JSON schema",
            hint='send {"type": "json_schema", "json_schema": {"name": NAME, "schema": {...}}}',
            param="response_format",
        )
    return schema, wanted.get("strict") is True
