"""One name for a request: in its answer's header, in its answer and in the log."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from akashic_daemon.api.app import create_app
from akashic_daemon.engine.fake import FakeEngine
from echo_service import Caller, EchoService, run
from fake_service import running_service

HELLO: dict[str, Any] = {"model": "fake", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}


def answers(home: Path, *asked: tuple[str, dict[str, Any]]) -> list[httpx.Response]:
    """Ask a service on the fake engine, all at the same time."""

    async def run() -> list[httpx.Response]:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            transport = httpx.ASGITransport(create_app(service, token=None), client=("127.0.0.1", 5))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return list(await asyncio.gather(*(client.post(path, json=body) for path, body in asked)))

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_header_answer_and_log_have_one_name(home: Path, caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    body = {**HELLO, "stream": stream}
    with caplog.at_level(logging.INFO, "akashic.requests"):
        chat, message = answers(home, ("/v1/chat/completions", body), ("/v1/messages", body))
    logged = [record.getMessage() for record in caplog.records if record.name == "akashic.requests"]
    for found, head in ((chat, "chatcmpl-"), (message, "msg_")):
        name = found.headers["x-request-id"]
        assert f'"{head}{name}"' in found.text
        assert any(f"request={name} " in line for line in logged)
    assert message.headers["request-id"] == message.headers["x-request-id"] != chat.headers["x-request-id"]


def test_several_prompts_of_one_request_have_its_name_and_a_number(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "akashic.requests"):
        (found,) = answers(home, ("/v1/completions", {"model": "fake", "prompt": ["a", "b"], "max_tokens": 2}))
    assert found.status_code == 200
    name = found.headers["x-request-id"]
    logged = sorted(r.getMessage().split()[0] for r in caplog.records if r.name == "akashic.requests")
    assert logged == [f"request={name}", f"request={name}.2"]


def test_a_path_with_line_breaks_is_one_line_of_the_log(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = EchoService(home)
    caller = Caller(service, "/akashic/v1/sessions/a\n2030 ERROR forged/turn", [b"{", None])

    async def check() -> None:
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)

    with caplog.at_level(logging.INFO, "akashic.http"):
        run(check)
    (said,) = [r.getMessage() for r in caplog.records if "the client left" in r.getMessage()]
    assert said.startswith("POST /akashic/v1/sessions/a\\n2030 ERROR forged/turn: ")
    assert "\n" not in said


def test_refused_requests_have_a_name_too(home: Path) -> None:
    wrong = {**HELLO, "max_tokens": -1}
    for found in answers(home, ("/v1/messages", wrong), ("/v1/chat/completions", wrong), ("/nowhere", {})):
        assert found.status_code in (400, 404)
        assert found.headers["x-request-id"].startswith("req-")
