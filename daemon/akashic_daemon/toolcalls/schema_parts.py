"""Schemas made of others: references followed, several joined into one, and what a grammar can't say noted or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from akashic_daemon.errors import BadRequest

MOST_DEPTH = 48
_MOST_NOTES = 16
SAYS_NOTHING = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "example",
        "$schema",
        "$id",
        "id",
        "$comment",
        "$anchor",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$defs",
        "definitions",
        "discriminator",
        "contentMediaType",
        "contentEncoding",
        "strict",
    ]
)


class Joiner:
    """Knows the root of one schema. What is left out goes to `notes`, or is refused when the schema is strict."""

    def __init__(self, root: Any, strict: bool, notes: list[str]) -> None:
        self._root = root
        self._strict = strict
        self._notes = notes
        self._depth = 0

    def find(self, pointer: Any, where: str) -> Any:
        """Return what a reference names, None when it isn't in this document (which is noted)."""
        if not isinstance(pointer, str) or (pointer != "#" and not pointer.startswith("#/")):
            self.loosen("$ref (only references into the same schema are followed)", where)
            return None
        at: Any = self._root
        seen: set[str] = set()
        while True:
            if pointer in seen:
                raise BadRequest(f"reading the schema at {where}: the reference {pointer} leads to itself", param=where)
            seen.add(pointer)
            at = self._root
            for part in pointer[2:].split("/") if len(pointer) > 1 else ():
                key = part.replace("~1", "/").replace("~0", "~")
                if isinstance(at, Mapping) and key in at:
                    at = at[key]
                elif isinstance(at, list) and key.isdecimal() and int(key) < len(at):
                    at = at[int(key)]
                else:
                    raise BadRequest(f"reading the schema at {where}: there is no {pointer}", param=where)
            following = at.get("$ref") if isinstance(at, Mapping) and set(at) - SAYS_NOTHING == {"$ref"} else None
            if not isinstance(following, str) or not following.startswith("#"):
                return at
            pointer = following

    def all_of(self, schema: Mapping[str, Any], where: str) -> Any:
        """Return one schema for a schema with `allOf`."""
        parts = schema["allOf"]
        if not isinstance(parts, list) or not parts:
            raise BadRequest(f"reading the schema at {where}.allOf: expected a list of schemas", param=where)
        out: Any = {k: v for k, v in schema.items() if k != "allOf"}
        for index, part in enumerate(parts):
            out = self.both(out, part, f"{where}.allOf[{index}]")
        return out

    def both(self, a: Any, b: Any, where: str) -> Any:
        """Return a schema for what conforms to both; what can't be joined is taken from `a` and noted."""
        for one, other in ((a, b), (b, a)):
            if one is True or one == {}:
                return other
        if not isinstance(a, Mapping) or not isinstance(b, Mapping):
            raise BadRequest(f"reading the schema at {where}: `false` allows no value at all", param=where)
        for one, other in ((a, b), (b, a)):
            if "$ref" in one:
                return self._with_reference(one, other, where)
        out = dict(a)
        for key, value in b.items():
            if key not in out or out[key] == value or key in SAYS_NOTHING:
                out.setdefault(key, value)
            elif key in ("anyOf", "oneOf", "allOf"):
                out["allOf"] = [*out.get("allOf", []), {key: value}]
            else:
                out[key] = self._join(key, out[key], value, where)
        return out

    def _with_reference(self, one: Mapping[str, Any], other: Any, where: str) -> Any:
        """Join two schemas, the first of which refers to a third."""
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise BadRequest(f"reading the schema at {where}: its references join without end", param=where)
        try:
            found = self.find(one["$ref"], where)
            rest = {k: v for k, v in one.items() if k != "$ref"}
            return self.both(rest if found is None else self.both(found, rest, where), other, where)
        finally:
            self._depth -= 1

    def _join(self, key: str, mine: Any, other: Any, where: str) -> Any:
        """Return what one keyword says when two schemas say it differently."""
        try:
            if key == "properties":
                both = {n: self.both(mine[n], v, f"{where}.{n}") if n in mine else v for n, v in other.items()}
                return {**mine, **both}
            if key == "required":
                return [*mine, *(name for name in other if name not in mine)]
            if key == "type":
                return _join_types(as_types(mine), as_types(other), where)
            if key == "additionalProperties":
                return False if False in (mine, other) else self.both(mine, other, where)
            if key in ("minimum", "minItems", "minLength", "exclusiveMinimum"):
                return max(mine, other)
            if key in ("maximum", "maxItems", "maxLength", "exclusiveMaximum"):
                return min(mine, other)
        except (TypeError, AttributeError) as error:
            raise BadRequest(f"reading the schema at {where}.{key}: it isn't what it should be", param=where) from error
        self.loosen(f"{key} (twice)", where)
        return mine

    def loosen(self, what: str, where: str) -> None:
        """Note that the grammar doesn't hold to something; refuse it when the schema is strict."""
        if self._strict:
            raise BadRequest(
                f"reading the strict schema at {where}: a grammar can't hold to {what}",
                hint="leave it out, or leave `strict` out",
                param=where,
            )
        if len(self._notes) < _MOST_NOTES:
            self._notes.append(f"the schema at {where} is not held to {what}")


def as_types(value: Any) -> list[str]:
    """Return the types that a schema names."""
    if value is None:
        return []
    return [str(kind) for kind in value] if isinstance(value, list) else [str(value)]


def _join_types(mine: list[str], other: list[str], where: str) -> str | list[str]:
    both = [kind for kind in mine if kind in other]
    if not both and "number" in (*mine, *other) and "integer" in (*mine, *other):
        both = ["integer"]
    if not both:
        raise BadRequest(f"reading the schema at {where}: two types exclude each other", param=where)
    return both[0] if len(both) == 1 else both
