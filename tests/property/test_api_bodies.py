"""Bodies that only look like requests: every API answers them or refuses them in its own shape, and never fails."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from akashic_daemon.api.app import create_app
from akashic_daemon.schedule.events import GenerationInput
from akashic_daemon.sessions.responses import ResponseService
from api_bodies import BODIES, mutated
from echo_service import Caller, EchoService


class Kept(ResponseService):
    """Keeps nothing, but what it is given must be JSON."""

    def __init__(self) -> None:
        pass

    async def keep(self, body: dict[str, Any], *, items: list[Any], previous: str | None, session: str | None) -> None:
        json.dumps([body, items, previous, session])

    async def history(self, response_id: str) -> list[Any]:
        return [{"role": "user", "content": response_id}]


class Counting(EchoService):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.responses = Kept()

    async def count_tokens(self, request: GenerationInput) -> int:
        return len(request.messages or ())


async def answered(path: str, body: bytes) -> Caller:
    with tempfile.TemporaryDirectory(prefix="ak-") as home:
        service = Counting(Path(home))
        caller = Caller(service, path, [body])
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)
    return caller


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(BODIES)), st.integers(0, 2**32), st.booleans())
def test_a_mutated_request_is_answered_or_refused_in_its_apis_shape(path: str, seed: int, stream: bool) -> None:
    body = mutated(BODIES[path], seed)
    if stream and not path.endswith("_tokens"):
        body["stream"] = True
    caller = asyncio.run(answered(path, json.dumps(body).encode()))
    assert caller.status in (200, 400), (body, caller.text)
    assert all(len(value) < 4000 for _, value in caller.sent[0]["headers"])
    if caller.status == 400:
        told = json.loads(caller.text)
        assert (told.get("type") == "error") == path.startswith("/v1/messages")
        assert told["error"]["type"] == "invalid_request_error"
        assert 0 < len(told["error"]["message"]) < 2000


def test_the_bodies_themselves_are_answered() -> None:
    for path, body in BODIES.items():
        caller = asyncio.run(answered(path, json.dumps(body).encode()))
        assert caller.status == 200, (path, caller.text)


@given(st.sampled_from(sorted(BODIES)), st.sampled_from(["tools", "metadata", "zeta"]), st.integers(150, 1200))
@settings(max_examples=30, deadline=None)
def test_nesting_is_answered_or_refused_however_deep_it_is(path: str, field: str, levels: int) -> None:
    body = {k: v for k, v in BODIES[path].items() if k not in ("tool_choice", field)}
    deep = '{"a":' * levels + "1" + "}" * levels
    given = {"tools": f'[{{"type": "hosted", "x": {deep}}}]'}.get(field, deep)
    text = json.dumps(body)[:-1] + f', "{field}": {given}}}'
    caller = asyncio.run(answered(path, text.encode()))
    assert caller.status == (400 if levels > 200 else caller.status)
    assert caller.status in (200, 400), caller.text[:500]
