"""The OpenAPI description against the routes that it describes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from akashic_daemon.api.app import create_app
from akashic_daemon.api.openapi import document
from akashic_daemon.api.openapi_table import EXAMPLES, OPERATIONS, SHAPES
from echo_service import Caller, EchoService, run


@pytest.fixture
def routes(home: Path) -> list[Route]:
    return [route for route in create_app(EchoService(home), token=None).routes if isinstance(route, Route)]


def references(value: Any) -> set[str]:
    """Return every `$ref` below a value."""
    if isinstance(value, list):
        return set().union(*(references(item) for item in value))
    if not isinstance(value, dict):
        return set()
    found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
    return found.union(*(references(item) for item in value.values()))


def test_each_method_of_each_route_stands_in_the_table_and_nothing_else_does(routes: list[Route]) -> None:
    served = {(method, route.path) for route in routes for method in (route.methods or set()) - {"HEAD"}}
    assert served == set(OPERATIONS)


def test_each_operation_says_what_it_is_for_by_a_name_of_its_own(routes: list[Route]) -> None:
    operations = [one for path in document(routes)["paths"].values() for one in path.values()]
    assert len(operations) == len(OPERATIONS)
    assert all(one["summary"].endswith(".") for one in operations)
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names)


def test_every_schema_that_is_referred_to_is_there_and_every_shape_is_used(routes: list[Route]) -> None:
    described = document(routes)
    schemas = described["components"]["schemas"]
    used = {name.removeprefix("#/components/schemas/") for name in references(described)}
    assert used <= set(schemas)
    assert set(SHAPES) <= used


def test_the_daemon_serves_it_as_the_routes_are(home: Path, routes: list[Route]) -> None:
    service = EchoService(home)
    caller = Caller(service, "/openapi.json", [b""], method="GET")
    run(lambda: create_app(service, token=None)(caller.scope, caller.receive, caller.send))
    assert caller.status == 200
    assert json.loads(caller.text) == document(routes)


def test_each_example_is_a_body_of_its_kind() -> None:
    assert set(EXAMPLES) == {told.body for told in OPERATIONS.values() if told.body is not None}
    for kind, example in EXAMPLES.items():
        body = kind.model_validate(example)
        assert not body.model_extra
        assert set(example) <= set(body.model_dump())
