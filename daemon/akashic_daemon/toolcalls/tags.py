"""Calls in tags: `<function=NAME>` around a `<parameter=KEY>` for each argument, values of text without quotes. Pure.

The arguments become a JSON object here. Which values are text and which JSON, the tools' schemas say; without a schema a
value that is JSON counts as such.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from akashic_daemon.toolcalls.definitions import name_of, parameters_of
from akashic_daemon.toolcalls.gbnf import Rules, either, literal, text_until

_CLOSING = "\n</parameter>"
_CALL = re.compile(r"\s*<function=([^>\s]{1,128})>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]{1,128})>\n?(.*?)\n?</parameter>\s*", re.DOTALL)

TextParameters = Mapping[str, frozenset[str]]
"""Of each tool, the parameters whose values are text as it stands."""


def text_parameters(tools: Sequence[Mapping[str, Any]]) -> TextParameters:
    """Return which parameters of tools are text."""
    return {
        name_of(tool): frozenset(key for key, schema in _properties(tool).items() if is_text(schema)) for tool in tools
    }


def is_text(schema: Any) -> bool:
    """Tell if a schema allows nothing but text."""
    if not isinstance(schema, Mapping):
        return False
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return bool(values) and all(isinstance(value, str) for value in values)
    return schema.get("type") == "string"


def tagged_call(text: str, texts: TextParameters | None) -> tuple[str, str] | None:
    """Return name and arguments of the call that a text is; None when it is anything else."""
    found = _CALL.fullmatch(text)
    if found is None:
        return None
    name, inner = found[1], found[2]
    plain = None if texts is None else texts.get(name)
    values: dict[str, Any] = {}
    at = 0
    while inner[at:].strip():
        parameter = _PARAMETER.match(inner, at)
        if parameter is None:
            return None
        key = parameter[1].strip()
        values[key] = parameter[2] if plain is not None and key in plain else _value(parameter[2])
        at = parameter.end()
    return name, json.dumps(values, ensure_ascii=False)


def tags_of(name: str, values: Mapping[str, Any]) -> str:
    """Return a call in tags."""
    parts = [
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}{_CLOSING}\n"
        for key, value in values.items()
    ]
    return f"<function={name}>\n{''.join(parts)}</function>"


def tag_grammar(rules: Rules, tool: Mapping[str, Any], value: Any) -> str:
    """Return a rule for one call of a tool; `value(schema, key)` returns the rule of a value that is JSON."""
    ends = text_until(rules, _CLOSING)
    required = parameters_of(tool).get("required", [])
    parts = [literal(f"<function={name_of(tool)}>\n")]
    for key, schema in _properties(tool).items():
        if is_text(schema):
            values = schema.get("enum", [schema["const"]] if "const" in schema else None)
            body = ends if values is None else f"{either(map(literal, values))} {literal(_CLOSING)}"
        else:
            body = f"{value(schema, key)} {literal(_CLOSING)}"
        part = f'{literal(f"<parameter={key}>" + chr(10))} {body} "\\n"'
        parts.append(part if key in required else f"( {part} )?")
    return rules.add(" ".join([*parts, literal("</function>")]))


def _properties(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = parameters_of(tool)
    properties = schema.get("properties", {}) if isinstance(schema, Mapping) else {}
    return properties if isinstance(properties, Mapping) else {}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
