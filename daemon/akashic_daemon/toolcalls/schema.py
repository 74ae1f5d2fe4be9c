"""JSON schemas as grammars: text that a grammar accepts is JSON that conforms to its schema.

What a grammar can't say is left out with a note, or refused when the schema is strict; either way it is named by its place.
A grammar may accept less than the schema allows: properties stand in the schema's order, and names that the schema doesn't
list need `additionalProperties`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from akashic_daemon.errors import BadRequest
from akashic_daemon.toolcalls.gbnf import Rules, either, literal
from akashic_daemon.toolcalls.names import other_name
from akashic_daemon.toolcalls.numbers import integers_between
from akashic_daemon.toolcalls.regex import UnknownRegex, regex_body
from akashic_daemon.toolcalls.schema_parts import MOST_DEPTH, SAYS_NOTHING, Joiner, as_types
from akashic_daemon.toolcalls.text_formats import FORMATS

_TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")
_OF_TYPE = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "format"}),
    "number": frozenset({"format", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "additionalItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
_TYPE_BY_KEYWORD = {
    **dict.fromkeys(("properties", "required", "additionalProperties", "patternProperties", "propertyNames"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"), "array"),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
}
_COMBINING = frozenset({"anyOf", "oneOf", "allOf", "$ref", "enum", "const", "type", "nullable"})
_MOST_REPEATS = 500


class SchemaGrammar:
    """Turns schemas into rules of one grammar; `notes` says what the grammar doesn't hold them to."""

    def __init__(self, rules: Rules) -> None:
        self.notes: list[str] = []
        self._rules = rules

    def rule(self, schema: Any, where: str, *, strict: bool = False) -> str:
        """Return the rule for a whole schema, which stands at `where` in the request.

        Raises BadRequest for what is no schema, nothing conforms to, or (strict) no grammar can say.
        """
        return _Document(self._rules, schema, where, strict, self.notes).rule()


class _Document:
    """One schema, the root that its references start from."""

    def __init__(self, rules: Rules, root: Any, where: str, strict: bool, notes: list[str]) -> None:
        self._rules = rules
        self._root = root
        self._where = where
        self._joiner = Joiner(root, strict, notes)
        self._known: dict[str, str] = {}
        self._depth = 0

    def rule(self) -> str:
        return self._of(self._root, self._where)

    def _of(self, schema: Any, where: str) -> str:
        if schema is True or schema == {}:
            return self._rules.base("value")
        if schema is False:
            raise BadRequest(f"reading the schema at {where}: `false` allows no value at all", param=where)
        if not isinstance(schema, Mapping):
            raise BadRequest(
                f"reading the schema at {where}: expected an object, found {type(schema).__name__}", param=where
            )
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise BadRequest(
                f"reading the schema at {where}: it is nested deeper than {MOST_DEPTH} levels",
                hint="use $defs and $ref for what repeats",
                param=where,
            )
        try:
            return self._combined(schema, where)
        finally:
            self._depth -= 1

    # -- what combines schemas ---------------------------------------------------------------------------------

    def _combined(self, schema: Mapping[str, Any], where: str) -> str:
        if schema.get("nullable") is True:
            rest = {key: value for key, value in schema.items() if key != "nullable"}
            return self._rules.add(either([self._of(rest, where), self._rules.base("null")]))
        if "const" in schema:
            return self._literals([schema["const"]], schema, f"{where}.const")
        if "enum" in schema:
            values = schema["enum"]
            if not isinstance(values, list) or not values:
                raise BadRequest(f"reading the schema at {where}.enum: expected a list with values", param=where)
            return self._literals(values, schema, f"{where}.enum")
        if "$ref" in schema:
            return self._referred(schema, where)
        if "allOf" in schema:
            return self._of(self._joiner.all_of(schema, where), where)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._one_of(schema, key, where)
        return self._typed(schema, where)

    def _literals(self, values: Sequence[Any], schema: Mapping[str, Any], where: str) -> str:
        types = as_types(schema.get("type"))
        fitting = [value for value in values if not types or any(_is_a(value, kind) for kind in types)]
        if not fitting:
            raise BadRequest(f"reading the schema at {where}: no value is of the type {'/'.join(types)}", param=where)
        return self._rules.add(either(map(self._exactly, fitting)))

    def _exactly(self, value: Any) -> str:
        """Return what matches one value, with or without blanks between its parts."""
        if not isinstance(value, dict | list) or not value:
            return literal(json.dumps(value, ensure_ascii=False))
        ws = self._rules.base("ws")
        comma, colon = f' {ws} "," {ws} ', f'{ws} ":" {ws}'
        if isinstance(value, list):
            return f'"[" {ws} {comma.join(map(self._exactly, value))} {ws} "]"'
        members = [f"{literal(json.dumps(k, ensure_ascii=False))} {colon} {self._exactly(v)}" for k, v in value.items()]
        return f'"{{" {ws} {comma.join(members)} {ws} "}}"'

    def _referred(self, schema: Mapping[str, Any], where: str) -> str:
        pointer = schema["$ref"]
        found = self._joiner.find(pointer, where)
        if found is None:
            return self._rules.base("value")
        beside = {k: v for k, v in schema.items() if k != "$ref" and k not in SAYS_NOTHING}
        if beside:
            return self._of(self._joiner.both(found, beside, where), where)
        if pointer not in self._known:
            name = self._known[pointer] = self._rules.reserve()
            self._rules.fill(name, self._of(found, f"{self._where}{pointer[1:].replace('/', '.')}"))
        return self._known[pointer]

    def _one_of(self, schema: Mapping[str, Any], key: str, where: str) -> str:
        options = schema[key]
        if not isinstance(options, list) or not options:
            raise BadRequest(f"reading the schema at {where}.{key}: expected a list of schemas", param=where)
        if key == "oneOf" and len(options) > 1:
            self._joiner.loosen("oneOf (taken as anyOf)", where)
        beside = {k: v for k, v in schema.items() if k != key and k not in SAYS_NOTHING}
        parts = []
        for index, option in enumerate(options):
            place = f"{where}.{key}[{index}]"
            parts.append(self._of(self._joiner.both(option, beside, place) if beside else option, place))
        return self._rules.add(either(parts))

    # -- one type ----------------------------------------------------------------------------------------------

    def _typed(self, schema: Mapping[str, Any], where: str) -> str:
        types = as_types(schema.get("type"))
        if not types:
            types = [next((_TYPE_BY_KEYWORD[key] for key in schema if key in _TYPE_BY_KEYWORD), "")]
        odd = [kind for kind in types if kind not in _TYPES and kind]
        if odd:
            raise BadRequest(
                f"reading the schema at {where}.type: {odd[0]!r} is no type"[:200],
                hint=f"use {', '.join(_TYPES)}",
                param=where,
            )
        if types == [""]:
            self._say_unknown(schema, "", where)
            return self._rules.base("value")
        if len(types) > 1:
            self._say_unknown(schema, *types, where)
            known = [self._kind(kind, schema, where) for kind in types if not (kind == "integer" and "number" in types)]
            return self._rules.add(either(known))
        self._say_unknown(schema, types[0], where)
        return self._kind(types[0], schema, where)

    def _say_unknown(self, schema: Mapping[str, Any], *types_and_where: str) -> None:
        *types, where = types_and_where
        known = SAYS_NOTHING.union(_COMBINING, *(_OF_TYPE.get(kind, ()) for kind in types))
        elsewhere = frozenset().union(*_OF_TYPE.values())
        for key in schema:
            # A keyword of another type says nothing of this one.
            if key not in known and key not in elsewhere and not key.startswith("x-"):
                self._joiner.loosen(key, where)

    def _kind(self, kind: str, schema: Mapping[str, Any], where: str) -> str:
        if kind == "object":
            return self._object(schema, where)
        if kind == "array":
            return self._array(schema, where)
        if kind == "string":
            return self._string(schema, where)
        if kind == "integer":
            return self._integer(schema, where)
        if kind == "number":
            limits = [key for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if key in schema]
            for key in limits:
                self._joiner.loosen(key, where)
        return self._rules.base(kind)

    def _string(self, schema: Mapping[str, Any], where: str) -> str:
        pattern, kind = schema.get("pattern"), schema.get("format")
        least, most = self._bounds(schema, "minLength", "maxLength", where)
        body = None
        if isinstance(pattern, str):
            try:
                body = regex_body(pattern)
            except UnknownRegex as error:
                self._joiner.loosen(f"pattern ({error})", where)
        if body is None and isinstance(kind, str) and kind in FORMATS:
            body = FORMATS[kind]
        elif isinstance(kind, str) and kind not in FORMATS and pattern is None:
            self._joiner.loosen(f"format {kind}", where)
        if body is not None:
            if least or most is not None:
                self._joiner.loosen("minLength/maxLength beside pattern or format", where)
            return self._rules.add(f'"\\"" {body} "\\""')
        if not least and most is None:
            return self._rules.base("string")
        return self._rules.add(f'"\\"" {self._rules.base("char")}{_times(least, most)} "\\""')

    def _integer(self, schema: Mapping[str, Any], where: str) -> str:
        low, high = _number(schema.get("minimum")), _number(schema.get("maximum"))
        over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        lowest = None if low is None else -int(-low // 1)
        highest = None if high is None else int(high // 1)
        if over is True and lowest is not None and low == lowest:
            lowest += 1
        elif (bound := _number(over)) is not None:
            lowest = max(int(bound // 1) + 1, lowest if lowest is not None else int(bound // 1) + 1)
        if under is True and highest is not None and high == highest:
            highest -= 1
        elif (bound := _number(under)) is not None:
            highest = min(-int(-bound // 1) - 1, highest if highest is not None else -int(-bound // 1) - 1)
        if lowest is None and highest is None:
            return self._rules.base("integer")
        if lowest is not None and highest is not None and lowest > highest:
            raise BadRequest(f"reading the schema at {where}: no integer lies between its limits", param=where)
        body = integers_between(lowest, highest)
        if body is None:
            self._joiner.loosen("minimum/maximum (too large)", where)
            return self._rules.base("integer")
        return self._rules.add(body)

    def _array(self, schema: Mapping[str, Any], where: str) -> str:
        ws = self._rules.base("ws")
        first, rest = schema.get("prefixItems"), schema.get("items", True)
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems", True)
        if first is not None and not isinstance(first, list):
            raise BadRequest(f"reading the schema at {where}.prefixItems: expected a list of schemas", param=where)
        least, most = self._bounds(schema, "minItems", "maxItems", where)
        places = [self._of(item, f"{where}.prefixItems[{i}]") for i, item in enumerate(first or [])]
        if most is not None:
            places = places[:most]
        if rest is False or (most is not None and most <= len(places)):
            more, most = None, len(places)
        else:
            more = self._of(rest, f"{where}.items")
        if least > (most if most is not None else least):
            raise BadRequest(f"reading the schema at {where}: it has room for fewer items than minItems", param=where)
        comma = f'{ws} "," {ws} '
        after = ""
        if more is not None:
            room = None if most is None else most - len(places)
            needed = max(0, least - len(places))
            if not places:
                if room == 0:
                    return self._rules.add(f'"[" {ws} "]"')
                tail = f"{more} ( {comma}{more} ){_times(max(0, needed - 1), None if room is None else room - 1)} {ws}"
                return self._rules.add(f'"[" {ws} {tail} "]"' if needed else f'"[" {ws} ( {tail} )? "]"')
            after = f"( {comma}{more} ){_times(needed, room)}"
        for index in range(len(places) - 1, 0, -1):
            after = f"{comma}{places[index]} {after}"
            if index >= least:
                after = f"( {after} )?"
        body = f"{places[0]} {after} {ws}" if places else ""
        if not places:
            return self._rules.add(f'"[" {ws} "]"')
        return self._rules.add(f'"[" {ws} {body} "]"' if least else f'"[" {ws} ( {body} )? "]"')

    def _object(self, schema: Mapping[str, Any], where: str) -> str:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, Mapping):
            raise BadRequest(f"reading the schema at {where}.properties: expected an object", param=where)
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise BadRequest(f"reading the schema at {where}.required: expected a list of names", param=where)
        more = schema.get("additionalProperties", not properties)
        missing = [name for name in required if name not in properties]
        properties = {**properties, **dict.fromkeys(missing, more if more is not False else True)}
        if not properties and more is True:
            return self._rules.base("object")
        ws = self._rules.base("ws")
        comma = f'{ws} "," {ws} '
        pairs = [
            (
                f'{literal(json.dumps(name, ensure_ascii=False))} {ws} ":" {ws} {self._of(part, f"{where}.{name}")}',
                name in required,
            )
            for name, part in properties.items()
        ]
        extra = None
        if more is not False and more is not None:
            key = other_name(self._rules, list(properties))
            extra = f'{key} {ws} ":" {ws} {self._of(more, f"{where}.additionalProperties")}'
        return self._rules.add(f'"{{" {ws} {self._members(pairs, extra, comma, ws)} "}}"')

    def _members(self, pairs: Sequence[tuple[str, bool]], extra: str | None, comma: str, ws: str) -> str:
        """Return a body for members in order; optional ones may be missing, others follow."""
        after = f"( {comma}{extra} )*" if extra else ""
        first = f"( {extra} {after} {ws} )?" if extra else ""
        for pair, needed in reversed(pairs):
            here = f"{pair} {after} {ws}"
            following = f"{comma}{pair} {after}"
            if needed:
                first, after = here, self._rules.add(following)
            else:
                first = f"( {here} | {first} )" if first else f"( {here} )?"
                first, after = (
                    self._rules.add(first),
                    self._rules.add(f"( {following} | {after} )" if after else f"( {following} )?"),
                )
        return first

    def _bounds(self, schema: Mapping[str, Any], low: str, high: str, where: str) -> tuple[int, int | None]:
        least, most = schema.get(low, 0), schema.get(high)
        for key, value in ((low, least), (high, most)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise BadRequest(f"reading the schema at {where}.{key}: expected a count", param=where)
        if most is not None and least > most:
            raise BadRequest(f"reading the schema at {where}: {low} is larger than {high}", param=where)
        if least > _MOST_REPEATS:
            self._joiner.loosen(f"{low} over {_MOST_REPEATS}", where)
            least = _MOST_REPEATS
        if most is not None and most > _MOST_REPEATS:
            self._joiner.loosen(f"{high} over {_MOST_REPEATS}", where)
            most = None
        return least, most


def _times(least: int, most: int | None) -> str:
    if most is None:
        return "*" if least == 0 else "+" if least == 1 else f"{{{least},}}"
    return "?" if (least, most) == (0, 1) else f"{{{least},{most}}}"


def _is_a(value: Any, kind: str) -> bool:
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    kinds: dict[str, Any] = {"string": str, "number": (int, float), "null": type(None), "object": dict, "array": list}
    return isinstance(value, kinds.get(kind, ()))


def _number(value: Any) -> float | int | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
