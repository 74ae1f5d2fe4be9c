"""Reading request bodies: bounded, strict JSON, and errors that say what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from akashic_daemon.errors import BadRequest, BodyTooLarge

BODY_LIMIT_BYTES = 64 * 1024 * 1024
_MOST_DIGITS = 30
_MOST_LEVELS = 200
"""So deeply a body may be nested. What can be read must also be written again, from further up the stack."""
M = TypeVar("M", bound=BaseModel)


def _no_constant(name: str) -> NoReturn:
    raise BadRequest(f"the body holds {name}, which is not JSON", hint="send finite numbers")


def _too_deep() -> BadRequest:
    return BadRequest(f"the body's JSON is nested more than {_MOST_LEVELS} levels deep", hint="flatten it")


def _is_deeper(data: Any, levels: int) -> bool:
    """Tell if containers stand in containers more than `levels` deep. Goes level by level, without recursion."""
    level = [data]
    for _ in range(levels):
        inner: list[Any] = []
        for container in level:
            values = container.values() if isinstance(container, dict) else container
            inner += [value for value in values if isinstance(value, dict | list)]
        if not inner:
            return False
        level = inner
    return True


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"the body is over {BODY_LIMIT_BYTES:,} bytes", hint="send a shorter history")


async def read_json(request: Request) -> dict[str, Any]:
    """Return the body's JSON object. Raises BadRequest naming the place, BodyTooLarge."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > _MOST_DIGITS or int(announced) > BODY_LIMIT_BYTES):
        raise _too_large()
    parts: list[bytes] = []
    size_bytes = 0
    async for part in request.stream():
        size_bytes += len(part)
        if size_bytes > BODY_LIMIT_BYTES:
            raise _too_large()
        parts.append(part)
    try:
        data = json.loads(b"".join(parts).decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        packed = request.headers.get("content-encoding", "identity")
        hint = "encode it as UTF-8" if packed == "identity" else f"send it without Content-Encoding: {packed[:40]}"
        raise BadRequest(f"the body is not UTF-8: {error}", hint=hint) from error
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}", hint="check quotes and commas there") from error
    except RecursionError as error:
        raise _too_deep() from error
    if isinstance(data, dict) and _is_deeper(data, _MOST_LEVELS):
        raise _too_deep()
    if not isinstance(data, dict):
        raise BadRequest(f"the body is a JSON {type(data).__name__}, not an object", hint='send {"…": …}')
    return data


def parse(model: type[M], data: dict[str, Any]) -> M:
    """Return `data` as `model`. Raises BadRequest naming the field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found, place = _innermost(error, data)
        field = ".".join(map(str, place)) or "body"
        shown = repr(found.get("input"))[:80]
        raise BadRequest(f"field {field!r}: {found['msg']}, got {shown}", param=field) from error
    except RecursionError as error:
        raise _too_deep() from error


def _innermost(error: ValidationError, data: dict[str, Any]) -> tuple[Mapping[str, Any], list[str | int]]:
    """Return the first thing that is wrong, and its place.

    Of a field that may be of several kinds each kind has errors: the innermost one tells of the kind that was meant.
    """
    errors = error.errors(include_url=False, include_context=False)
    places = [_place(one["loc"], data, is_missing=one["type"] == "missing") for one in errors]
    of_field = [i for i, place in enumerate(places) if place[:1] == places[0][:1]]
    best = max(of_field, key=lambda i: len(places[i]))
    return errors[best], places[best]


def _place(loc: Sequence[str | int], data: Any, *, is_missing: bool) -> list[str | int]:
    """Return where an error stands in what was sent; pydantic also names the kinds that a value may have."""
    out: list[str | int] = []
    part: Any
    for part in loc:
        if (isinstance(data, dict) and part in data) or (isinstance(data, list) and isinstance(part, int)):
            out.append(part)
            data = data[part]
    return [*out, loc[-1]] if is_missing else out
