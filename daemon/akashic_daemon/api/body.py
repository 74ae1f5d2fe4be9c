"""Reading request bodies: bounded, strict JSON, and errors that say what is wrong."""

from __future__ import annotations

import json
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
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(p) for p in first["loc"]) or "body"
        shown = repr(first.get("input"))[:80]
        raise BadRequest(f"field {field!r}: {first['msg']}, got {shown}", param=field) from error
    except RecursionError as error:
        raise _too_deep() from error
