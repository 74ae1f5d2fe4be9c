"""`/openapi.json`: the routes as an OpenAPI 3.1 document, made of the wire models that the routes read and write.

What a route is for is its function's docstring. What it reads and writes stands in `openapi_table`, and a test holds
that table to the routes. Bodies of other people's APIs are described as far as we promise them: their unknown fields
are let through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from akashic_daemon import __version__
from akashic_daemon.api.border import json_response
from akashic_daemon.api.openapi_table import EXAMPLES, OPERATIONS, SHAPES, Operation

_REF = "#/components/schemas/{model}"
_ERRORS = {
    "/v1/messages": "AnthropicError",
    "/v1/": "OpenAIError",
}
_PLACE = re.compile(r"\{(\w+)(?::\w+)?\}")


def routes() -> list[Route]:
    """Return the route."""
    return [Route("/openapi.json", openapi, methods=["GET"])]


async def openapi(request: Request) -> Response:
    """Answer with this document."""
    return json_response(document(request.app.routes))


def document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes. Each must stand in the table."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        assert isinstance(route, Route)
        path = _PLACE.sub(r"{\1}", route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(route, path, OPERATIONS[method, route.path])
    return {
        "openapi": "3.1.0",
        "info": {"title": "akashic", "version": __version__},
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {"securitySchemes": _SECURITY, "schemas": {**_model_schemas(), **SHAPES}},
    }


_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def _operation(route: Route, path: str, told: Operation) -> dict[str, Any]:
    about = (route.endpoint.__doc__ or "").strip()
    answer = {"description": told.about or "The answer.", "content": _content(told)}
    out: dict[str, Any] = {
        "summary": about.partition("\n")[0],
        "operationId": f"{route.endpoint.__module__.rpartition('.')[2]}_{route.name}",
        "tags": [_tag(path)],
        "parameters": [*_path_parameters(path), *_query_parameters(told)],
        "responses": {str(told.status): answer, **_error_answers(path, told)},
    }
    if told.body is not None:
        content = {"schema": {"$ref": _ref(told.body)}, "example": EXAMPLES[told.body]}
        out["requestBody"] = {"required": True, "content": {"application/json": content}}
    if told.upload:
        out["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    return out


def _tag(path: str) -> str:
    """Return whose API a path belongs to."""
    if path.startswith("/akashic/"):
        return "akashic"
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "openai" if path.startswith("/v1/") else "monitoring"


def _content(told: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if told.answer is not None:
        content["application/json"] = {"schema": {"$ref": _ref(told.answer)}}
    for media_type in told.streams:
        # OpenAPI has no word for the items of a stream: the schema is that of one line.
        content[media_type] = {"schema": {"$ref": _ref(told.line)}} if told.line is not None else {}
    return content


def _error_answers(path: str, told: Operation) -> dict[str, Any]:
    shape = next((name for start, name in _ERRORS.items() if path.startswith(start)), "Error")
    answers = {
        code: {"description": about, "content": {"application/json": {"schema": {"$ref": _REF.format(model=shape)}}}}
        for code, about in (
            ("4XX", "Nothing was done; the message says why."),
            ("5XX", "The daemon failed or is full."),
        )
    }
    for code, name in told.other_answers.items():
        schema = {"$ref": _REF.format(model=name)}
        answers[code] = {"description": name, "content": {"application/json": {"schema": schema}}}
    return answers


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PLACE.findall(path)
    ]


def _query_parameters(told: Operation) -> list[dict[str, Any]]:
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in told.query.items()]


def _ref(shape: type[BaseModel] | str) -> str:
    return _REF.format(model=shape if isinstance(shape, str) else shape.__name__)


def _model_schemas() -> dict[str, Any]:
    """Return the schemas of all wire models in the table: of what is read, as it is checked; of what is written, as it goes out."""
    read = {told.body for told in OPERATIONS.values() if told.body is not None}
    written = {
        shape
        for told in OPERATIONS.values()
        for shape in (told.answer, told.line)
        if shape is not None and not isinstance(shape, str)
    }
    asked = [*((model, "validation") for model in read), *((model, "serialization") for model in written)]
    _, schemas = models_json_schema(sorted(asked, key=lambda pair: pair[0].__name__), ref_template=_REF)  # type: ignore[arg-type]
    found: dict[str, Any] = schemas["$defs"]
    return found
