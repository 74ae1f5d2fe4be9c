"""Random JSON schemas with values, and a validator of what they use that shares nothing with the product."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st

PATTERNS = ["^[a-c]{2,4}$", "^(x|yz)+\\d?$", 'a"b', "^[^\\s\"']*$", "^\\w+-\\d{2}$", "^(?:ab|\\\\)*$", "é.ü"]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
scalars = st.none() | st.booleans() | st.integers(-999, 999) | st.floats(-1e6, 1e6) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
names = st.sampled_from(["a", "b", "ab", "name", 'q"t', "ü", "a b"])


@st.composite
def _strings(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["plain", "lengths", "pattern"]))
    if kind == "pattern":
        return {"type": "string", "pattern": draw(st.sampled_from(PATTERNS))}
    if kind == "lengths":
        low = draw(st.integers(0, 3))
        return {"type": "string", "minLength": low, "maxLength": low + draw(st.integers(0, 3))}
    return {"type": "string"}


@st.composite
def _integers(draw: st.DrawFn) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "integer"}
    low, high = sorted(draw(st.tuples(st.integers(-1200, 1200), st.integers(-1200, 1200))))
    if draw(st.booleans()):
        out["minimum"] = low
    if draw(st.booleans()):
        out["maximum"] = high
    if draw(st.booleans()) and low < high:
        out["exclusiveMinimum"] = low
    return out


@st.composite
def _arrays(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "array"}
    if draw(st.booleans()):
        out["items"] = draw(inner)
    if draw(st.booleans()):
        out["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    if draw(st.booleans()):
        out["minItems"] = draw(st.integers(0, 3))
    if draw(st.booleans()):
        out["maxItems"] = out.get("minItems", 0) + draw(st.integers(0, 2))
    return out


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    properties = draw(st.dictionaries(names, inner, max_size=4))
    out: dict[str, Any] = {"type": "object", "properties": properties}
    if properties:
        out["required"] = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    more = draw(st.sampled_from(["absent", "no", "any", "schema"]))
    if more != "absent":
        out["additionalProperties"] = {"no": False, "any": True}.get(more) if more != "schema" else draw(inner)
    return out


_SIMPLE: list[dict[str, Any]] = [
    {"type": "number"},
    {"type": "boolean"},
    {"type": "null"},
    {},
    {"type": ["string", "null"]},
]


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of everything that a grammar can say but references."""
    leaves = (
        _strings()
        | _integers()
        | st.sampled_from(_SIMPLE)
        | st.builds(lambda v: {"enum": v}, st.lists(values, min_size=1, max_size=3))
        | st.builds(lambda v: {"const": v}, values)
    )
    return st.recursive(
        leaves,
        lambda inner: (
            _arrays(inner)
            | _objects(inner)
            | st.builds(lambda v: {"anyOf": v}, st.lists(inner, min_size=1, max_size=2))
        ),
        max_leaves=5,
    )


@st.composite
def conforming(draw: st.DrawFn, schema: Mapping[str, Any]) -> Any:
    """Return a value that conforms, its members in the schema's order."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    if "anyOf" in schema:
        return draw(conforming(draw(st.sampled_from(schema["anyOf"]))))
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = draw(st.sampled_from(kind))
    if kind == "object":
        return draw(_object_values(schema))
    if kind == "array":
        return draw(_array_values(schema))
    if kind == "string":
        if "pattern" in schema:
            return draw(st.from_regex(re.compile(schema["pattern"], re.ASCII)).filter(_has_no_surrogate))
        return draw(
            st.text(
                st.characters(exclude_categories=["Cs"]),
                min_size=schema.get("minLength", 0),
                max_size=schema.get("maxLength", 8),
            )
        )
    if kind == "integer":
        low = max(schema.get("minimum", -(10**6)), schema.get("exclusiveMinimum", -(10**6)) + 1)
        return draw(st.integers(low, schema.get("maximum", max(low, 10**6))))
    simple = {"number": st.floats(-1e300, 1e300) | st.integers(-(10**9), 10**9), "boolean": st.booleans()}
    return draw({**simple, "null": st.none()}.get(str(kind), values))


def _has_no_surrogate(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


@st.composite
def _object_values(draw: st.DrawFn, schema: Mapping[str, Any]) -> dict[str, Any]:
    out = {}
    for name, part in schema.get("properties", {}).items():
        if name in schema.get("required", []) or draw(st.booleans()):
            out[name] = draw(conforming(part))
    more = schema.get("additionalProperties", not schema.get("properties"))
    if more is not False and draw(st.booleans()):
        extra = draw(
            texts.filter(
                lambda name: (
                    name not in schema["properties"] and name.isprintable() and '"' not in name and "\\" not in name
                )
            )
        )
        out[extra] = draw(conforming(more if isinstance(more, dict) else {}))
    return out


@st.composite
def _array_values(draw: st.DrawFn, schema: Mapping[str, Any]) -> list[Any]:
    first = schema.get("prefixItems", [])
    low = schema.get("minItems", 0)
    count = draw(st.integers(low, schema.get("maxItems", max(low, 3))))
    return [draw(conforming(first[i] if i < len(first) else schema.get("items", {}))) for i in range(count)]


def conforms(value: Any, schema: Any) -> bool:
    """Tell if a value conforms to a schema of these kinds."""
    if isinstance(schema, bool):
        return schema
    if "const" in schema and not _same(value, schema["const"]):
        return False
    if "enum" in schema and not any(_same(value, option) for option in schema["enum"]):
        return False
    if "anyOf" in schema and not any(conforms(value, option) for option in schema["anyOf"]):
        return False
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is(value, kind) for kind in kinds):
            return False
    if isinstance(value, str):
        pattern = schema.get("pattern")
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9) and (
            pattern is None or re.search(pattern.replace("$", "\\Z"), value, re.ASCII) is not None
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        inside = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        return bool(inside and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"]))
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        sized = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9)
        parts = [first[i] if i < len(first) else schema.get("items", {}) for i in range(len(value))]
        return sized and all(map(conforms, value, parts))
    if isinstance(value, dict):
        own, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        present = all(name in value for name in schema.get("required", []))
        return present and all(conforms(v, own.get(k, more)) for k, v in value.items())
    return True


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    kinds: dict[str, Any] = {
        "string": str, "number": (int, float), "null": type(None), "object": dict, "array": list, "boolean": bool,
    }  # fmt: skip
    return isinstance(value, kinds[kind])


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    return bool(a == b)
