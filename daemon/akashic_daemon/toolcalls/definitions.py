"""Tool definitions as the model is to see them: in one order of keys, whatever order a client sends.

The keys of a JSON object mean the same in any order, but tokens don't; so each definition is put into one order before it
is rendered. The names of a schema's properties keep theirs (a model writes arguments in that order), unless the canonical
order is asked for, which sorts them and the tools by name. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FIRST = (
    "type",
    "function",
    "name",
    "title",
    "description",
    "parameters",
    "$ref",
    "enum",
    "const",
    "properties",
    "required",
)
_RANK = {key: rank for rank, key in enumerate(_FIRST)}
_BY_NAME = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
"""Below these keys stand names that somebody chose."""
_AS_THEY_ARE = frozenset({"enum", "const", "default", "examples", "example"})
"""Below these keys stand values, not schemas."""


def canonical(tools: Sequence[Mapping[str, Any]], *, by_name: bool = False) -> tuple[Mapping[str, Any], ...]:
    """Return the definitions with their keys in one order; by_name also sorts the tools and their properties."""
    out = [_ordered(tool, by_name) for tool in tools]
    return tuple(sorted(out, key=name_of)) if by_name else tuple(out)


def name_of(tool: Mapping[str, Any]) -> str:
    """Return a tool's name."""
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, Mapping) else str(tool.get("name", ""))


def parameters_of(tool: Mapping[str, Any]) -> Any:
    """Return the JSON schema of a tool's arguments; an empty object schema when it has none."""
    function = tool.get("function")
    schema = function.get("parameters") if isinstance(function, Mapping) else None
    return {"type": "object", "properties": {}} if schema is None else schema


def is_strict(tool: Mapping[str, Any]) -> bool:
    """Tell if a tool asks that its schema be obeyed to the letter."""
    function = tool.get("function")
    return isinstance(function, Mapping) and function.get("strict") is True


def _ordered(value: Any, by_name: bool, *, names: bool = False) -> Any:
    if isinstance(value, list):
        return [_ordered(item, by_name) for item in value]
    if not isinstance(value, Mapping):
        return value
    if names:
        keys = sorted(value) if by_name else list(value)
    else:
        keys = sorted(value, key=lambda key: (_RANK.get(key, len(_RANK)), key))
    return {
        key: value[key]
        if not names and key in _AS_THEY_ARE
        else _ordered(value[key], by_name, names=not names and key in _BY_NAME)
        for key in keys
    }
