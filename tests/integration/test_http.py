"""The HTTP border over a service on the fake engine: shapes, errors, who may ask, and clients that leave."""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from akashic_daemon.api.app import create_app
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.service import Service
from fake_service import NEVER, fresh_answer, running_service, user

TOKEN = "secret-token"
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}

Check = Callable[[httpx.AsyncClient, Service], Awaitable[None]]


def with_client(home: Path, check: Check, *, token: str | None = None, host: str = "127.0.0.1") -> None:
    """Run `check` with a client that comes over TCP as far as the border can see."""

    async def run() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            transport = httpx.ASGITransport(create_app(service, token=token), client=("127.0.0.1", 5))
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}:1") as client:
                await check(client, service)

    asyncio.run(run())


def stream_objects(text: str) -> list[Any]:
    """Return the data of a server-sent stream; checks that it ends as OpenAI's do."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_chat_completion_has_openais_shape_and_always_says_what_was_cached(home: Path) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        for cached_at_least in (0, 10):
            response = await client.post(CHAT, json=HELLO)
            body = response.json()
            assert response.status_code == 200
            assert body["object"] == "chat.completion"
            assert body["model"] == "fake"
            assert body["choices"][0]["message"] == {"role": "assistant", "content": fresh_answer([user("hello")], 20)}
            assert body["choices"][0]["finish_reason"] in ("stop", "length")
            usage = body["usage"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= cached_at_least
            assert body["akashic"]["reused_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]

    with_client(home, check)


def test_a_streamed_answer_says_the_same_words(home: Path) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        request = {**HELLO, "stream": True, "stream_options": {"include_usage": True}}
        response = await client.post(CHAT, json=request)
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = stream_objects(response.text)
        deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
        assert deltas[0]["role"] == "assistant"
        assert "".join(d.get("content", "") for d in deltas) == fresh_answer([user("hello")], 20)
        assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
        assert len({c["id"] for c in chunks}) == 1
        assert chunks[-1]["choices"] == []
        assert "cached_tokens" in chunks[-1]["usage"]["prompt_tokens_details"]
        assert chunks[-2]["choices"][0]["finish_reason"] in ("stop", "length")

    with_client(home, check)


def test_a_text_completion_takes_its_prompt_as_it_is(home: Path) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        response = await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 3})
        body = response.json()
        assert body["object"] == "text_completion"
        assert body["usage"]["prompt_tokens"] == 3
        assert isinstance(body["choices"][0]["text"], str)

    with_client(home, check)


@pytest.mark.parametrize("stream", [False, True])
def test_fields_that_mean_nothing_to_us_are_named_in_a_header(home: Path, stream: bool) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        response = await client.post(CHAT, json={**HELLO, "stream": stream, "zeta": 1, "service_tier": "x"})
        assert response.status_code == 200
        assert response.headers["x-akashic-ignored"] == "service_tier, zeta"
        plain = await client.post(CHAT, json=HELLO)
        assert "x-akashic-ignored" not in plain.headers

    with_client(home, check)


BAD_BODIES = {
    "cut_off": b'{"messages": [',
    "no_object": b"[]",
    "empty_body": b"",
    "nan": b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    "infinity": b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
    "latin1": b'{"messages": [{"role": "user", "content": "\xe9"}]}',
    "unknown_role": b'{"messages": [{"role": "wizard", "content": "x"}]}',
    "empty_messages": b'{"messages": []}',
    "no_messages": b"{}",
    "message_is_text": b'{"messages": ["x"]}',
    "content_is_number": b'{"messages": [{"role": "user", "content": 5}]}',
    "negative_max_tokens": b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
    "two_answers": b'{"messages": [{"role": "user", "content": "x"}], "n": 2}',
    "unknown_extension": b'{"messages": [{"role": "user", "content": "x"}], "akashic": {"sesion": "s"}}',
    "bad_session_name": b'{"messages": [{"role": "user", "content": "x"}], "akashic": {"session": "a/b c"}}',
    "deeply_nested": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_body_is_a_400_in_openais_shape(home: Path, body: bytes, stream: bool) -> None:
    if stream and body.endswith(b"]}"):
        body = body[:-1] + b', "stream": true}'

    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        response = await client.post(CHAT, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert {"code", "param"} <= set(error)
        assert (await client.post(CHAT, json=HELLO)).status_code == 200

    with_client(home, check)


def test_a_packed_body_is_refused_by_the_name_of_its_packing(home: Path) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        packed = gzip.compress(json.dumps(HELLO).encode())
        response = await client.post(CHAT, content=packed, headers={"content-encoding": "gzip"})
        assert response.status_code == 400
        assert "without Content-Encoding: gzip" in response.json()["error"]["message"]

    with_client(home, check)


def test_an_unknown_model_is_a_404_that_lists_the_known_ones(home: Path) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        for stream in (False, True):
            response = await client.post(CHAT, json={**HELLO, "model": "gpt-9", "stream": stream})
            assert response.status_code == 404
            message = response.json()["error"]["message"]
            assert "gpt-9" in message
            assert "fake" in message

    with_client(home, check)


def test_a_prompt_too_long_is_a_400_with_both_numbers(home: Path) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        response = await client.post(CHAT, json={"messages": [{"role": "user", "content": "x" * 5000}]})
        error = response.json()["error"]
        assert response.status_code == 400
        assert error["code"] == "prompt_too_long"
        assert error["n_ctx"] == 1024
        assert error["n_prompt_tokens"] > 5000

    with_client(home, check)


def test_a_wrong_route_is_told_in_the_apis_shape(home: Path) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        for path in ("/v1/nothing", "/akashic/v1/nothing"):
            response = await client.get(path)
            assert response.status_code == 404
            assert path in response.json()["error"]["message"]

    with_client(home, check)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("PUT", "/akashic/v1/sessions/s", "DELETE, GET, HEAD"),
        ("PATCH", "/akashic/v1/models", "GET, HEAD, POST"),
        ("PUT", "/v1/responses/input_tokens", "POST"),
        ("PUT", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
    ],
)
def test_a_wrong_method_is_a_405_that_names_every_right_one(home: Path, method: str, path: str, allow: str) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        response = await client.request(method, path)
        assert response.status_code == 405
        assert response.headers["allow"] == allow
        error = response.json()["error"]
        assert error["code"] == "wrong_method"
        assert path in error["message"]
        assert ("type" in error) == path.startswith("/v1/")

    with_client(home, check)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "10.1"), ("temperature", "-0.1"), ("temperature", "1e999"), ("top_p", "1.1"), ("top_p", "-0.1"),
        ("top_k", "2147483648"), ("top_k", "-1"), ("min_p", "1.1"), ("max_tokens", "0"),
    ],
)  # fmt: skip
def test_both_apis_refuse_the_same_sampling_fields(home: Path, field: str, value: str) -> None:
    async def check(client: httpx.AsyncClient, service: Service) -> None:
        turn = '{"prompt": "hi", "%s": %s}' % (field, value)  # noqa: UP031  braces are JSON's here
        chat = '{"messages": [{"role": "user", "content": "hi"}], "%s": %s}' % (field, value)  # noqa: UP031
        for path, body in (("/akashic/v1/sessions/s/turn", turn), (CHAT, chat)):
            response = await client.post(path, content=body)
            assert response.status_code == 400, path
            assert field in response.json()["error"]["message"]
        assert (await service.list_sessions()).sessions == []

    with_client(home, check)


@pytest.mark.parametrize("value", [0, 1])
def test_both_apis_take_the_ends_of_top_p(home: Path, value: int) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        turn = await client.post("/akashic/v1/sessions/s/turn", json={"prompt": "hi", "top_p": value, "max_tokens": 2})
        assert '"kind":"done"' in turn.text
        assert (await client.post(CHAT, json={**HELLO, "top_p": value})).status_code == 200

    with_client(home, check)


@pytest.mark.parametrize("name", [".", ".."])
def test_a_session_cannot_be_named_like_a_folder(home: Path, name: str) -> None:
    async def check(client: httpx.AsyncClient, service: Service) -> None:
        chat = await client.post(CHAT, json={**HELLO, "akashic": {"session": name}})
        assert chat.status_code == 400
        dotted = name.replace(".", "%2E")
        turn = await client.post(f"/akashic/v1/sessions/{dotted}/turn", json={"prompt": "hi", "max_tokens": 2})
        assert '"kind":"done"' not in turn.text
        await client.post(CHAT, json={**HELLO, "akashic": {"session": "..."}})
        fork = await client.post("/akashic/v1/sessions/.../fork", json={"name": name})
        assert fork.status_code == 400
        assert [s.session for s in (await service.list_sessions()).sessions] == ["..."]

    with_client(home, check)


def test_damage_in_the_store_is_reported_over_http(home: Path) -> None:
    async def check(client: httpx.AsyncClient, service: Service) -> None:
        await client.post(CHAT, json={**HELLO, "akashic": {"session": "s"}})
        assert (await client.get("/akashic/v1/cache/verify")).json() == {
            "kind": "done", "sessions": 1, "findings": [], "error": None,
        }  # fmt: skip
        with closing(sqlite3.connect(service.paths.database)) as other:
            other.execute("UPDATE messages SET created_at_s = 7 WHERE id = 2")
            other.commit()
        found = (await client.get("/akashic/v1/cache/verify")).json()["findings"]
        assert [(f["kind"], f["subject"]) for f in found] == [("wrong_checksum", "message 2")]

    with_client(home, check)


def test_errors_of_an_import_name_the_file_that_the_user_sent(home: Path) -> None:
    async def check(client: httpx.AsyncClient, service: Service) -> None:
        for query, shown in (("&file=/home/me/log.jsonl", "/home/me/log.jsonl"), ("", "sent by the client")):
            for content in (b"", b"\x00\x01\x02", b'{"type": "user"}\n'):
                response = await client.post(f"/akashic/v1/import?format=codex{query}", content=content)
                error = json.loads(response.text.splitlines()[-1])["error"]
                assert f"reading transcript {shown}" in error["message"], error
                assert str(service.paths.cache_dir) not in response.text

    with_client(home, check)


def test_models_are_listed_with_the_usable_window_of_the_loaded_one(home: Path) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        await client.post(CHAT, json=HELLO)
        listed = {m["id"]: m for m in (await client.get("/v1/models")).json()["data"]}
        assert listed["fake"]["max_model_len"] == 1024

    with_client(home, check)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer secret-token\u00e9".encode("latin-1")}, 401),
        ({"authorization": f"Bearer {TOKEN}"}, 200),
        ({"x-api-key": TOKEN}, 200),
        ({"authorization": f"Bearer {TOKEN}", "host": "evil.example"}, 403),
        ({"authorization": f"Bearer {TOKEN}", "host": "localhost.evil.example:1"}, 403),
        ({"authorization": f"Bearer {TOKEN}", "host": "localhost:9"}, 200),
        ({"authorization": f"Bearer {TOKEN}", "origin": "https://evil.example"}, 403),
        ({"authorization": f"Bearer {TOKEN}", "origin": "null"}, 403),
        ({"authorization": f"Bearer {TOKEN}", "origin": "http://evil.example://localhost"}, 403),
        ({"authorization": f"Bearer {TOKEN}", "origin": "localhost"}, 403),
        ({"authorization": f"Bearer {TOKEN}", "origin": "http://localhost:3000"}, 200),
    ],
)
def test_tcp_clients_need_the_token_and_a_local_host_and_origin(
    home: Path, headers: dict[str, str], status: int
) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        for path in ("/v1/models", "/akashic/v1/sessions"):
            response = await client.get(path, headers=headers)
            assert response.status_code == status, response.text
            assert TOKEN not in response.text

    with_client(home, check, token=TOKEN)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/akashic/v1/models", {"path": "/etc/hosts"}),
        ("/akashic/v1/memory/watch", {"paths": ["/etc/hosts"], "once": True}),
    ],
)
def test_files_are_named_over_tcp_by_who_has_the_token_only(home: Path, path: str, body: dict[str, Any]) -> None:
    for token, is_refused in ((None, True), (TOKEN, False)):

        async def check(client: httpx.AsyncClient, _service: Service, is_refused: bool = is_refused) -> None:
            response = await client.post(path, json=body, headers={"authorization": f"Bearer {TOKEN}"})
            assert (response.status_code == 403) == is_refused, response.text
            assert ("names files" in response.text) == is_refused

        with_client(home, check, token=token)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_every_loopback_name_is_served(home: Path, host: str) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        assert (await client.get("/healthz")).status_code == 200

    with_client(home, check, token=TOKEN, host=host)


async def call(app: Any, body: bytes, *, socket: Path, leave_after: int) -> list[dict[str, Any]]:
    """Post a chat request as a client on the Unix socket that leaves after so many sent messages."""
    sent: list[dict[str, Any]] = []
    left = asyncio.Event()
    incoming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if len(sent) >= leave_after:
            left.set()

    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "query_string": b"", "headers": [],
        "client": None, "server": (str(socket), None), "scheme": "http", "http_version": "1.1", "root_path": "",
    }  # fmt: skip
    if leave_after == 0:
        left.set()
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(home: Path, stream: bool) -> None:
    async def run() -> None:
        engine = FakeEngine(kv_cells=1 << 20, window_tokens=1 << 18, end_every=NEVER)
        async with running_service(home, lambda _n, _p: engine) as service:
            body = {"messages": [{"role": "user", "content": "go on"}], "stream": stream, "akashic": {"session": "s"}}
            app = create_app(service, token=TOKEN)
            await asyncio.wait_for(
                call(app, json.dumps(body).encode(), socket=service.paths.socket, leave_after=4 if stream else 0), 60
            )
            assert (await service.stats()).activity == []
            if stream:
                history = await service.export_session("s")
                assert [m.role.value for m in history] == ["user", "assistant"]

    asyncio.run(run())


def test_a_session_turn_streams_lines_from_start_to_done(home: Path) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        response = await client.post("/akashic/v1/sessions/s/turn", json={"prompt": "hi", "max_tokens": 5})
        events = [json.loads(line) for line in response.text.splitlines() if line]
        assert events[0]["kind"] == "start"
        assert events[-1]["kind"] == "done"
        assert "".join(e["text"] for e in events if e["kind"] == "text") == events[-1]["text"]
        exported = await client.get("/akashic/v1/sessions/s/export")
        assert [json.loads(x)["role"] for x in exported.text.splitlines()] == ["user", "assistant"]

    with_client(home, check)


def test_native_errors_carry_code_and_hint(home: Path) -> None:
    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        await client.post("/akashic/v1/sessions/diary/turn", json={"prompt": "hi", "max_tokens": 5})
        response = await client.get("/akashic/v1/sessions/diry")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "not_found"
        assert "diary" in response.json()["error"]["hint"]

    with_client(home, check)


def test_health_is_told_while_a_long_prompt_is_cut_into_tokens(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_it, go_on = threading.Event(), threading.Event()
    tokenize = FakeEngine.tokenize

    def slowly(engine: FakeEngine, text: str, *, special: bool) -> list[int]:
        if text == "a long one":
            at_it.set()
            assert go_on.wait(60), "the event loop stood still"
        return tokenize(engine, text, special=special)

    async def check(client: httpx.AsyncClient, _service: Service) -> None:
        await client.post(CHAT, json=HELLO)
        monkeypatch.setattr(FakeEngine, "tokenize", slowly)
        asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a long one", "max_tokens": 2}))
        await asyncio.to_thread(at_it.wait, 60)
        assert (await client.get("/healthz")).status_code == 200
        go_on.set()
        assert (await asking).status_code == 200

    with_client(home, check)
