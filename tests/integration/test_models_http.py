"""Models over HTTP: what can't be one is refused, and looking at one never loads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from akashic_daemon.api.app import create_app
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.service import Service
from fake_service import answer, ask, running_service, user
from tiny_gguf import Shape, write_tiny_gguf

MODELS = "/akashic/v1/models"
TOKEN = "secret-token"


class Loads:
    """Makes fake engines and remembers for which models."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str, _path: Path) -> FakeEngine:
        self.names.append(name)
        return FakeEngine()


def with_client(
    home: Path, check: Callable[[httpx.AsyncClient, Service, Loads], Awaitable[None]], **flags: object
) -> None:
    async def run() -> None:
        loads = Loads()
        async with running_service(home, loads, models=("fake", "broken"), flags=flags) as service:
            transport = httpx.ASGITransport(create_app(service, token=TOKEN), client=("127.0.0.1", 5))
            known = {"authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=known) as client:
                await check(client, service, loads)

    asyncio.run(run())


def test_a_file_that_is_no_model_is_a_400_and_isnt_registered(home: Path, tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-100])
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "folder.gguf").mkdir()

    async def check(client: httpx.AsyncClient, _service: Service, _loads: Loads) -> None:
        for name in ("missing", "cut", "text", "folder"):
            path = str(tmp_path / f"{name}.gguf")
            response = await client.post(MODELS, json={"path": path})
            assert response.status_code == 400, name
            error = response.json()["error"]
            assert error["code"] == "model_file"
            assert path in error["message"]
            assert error["hint"]
        names = {model["name"] for model in (await client.get(MODELS)).json()["models"]}
        assert names - {"smollm2"} == {"fake", "broken"}

    with_client(home, check)


@pytest.mark.parametrize("name", [".", "..", "a/b", "a\nb", "default", "x" * 129])
def test_a_model_gets_only_a_name_by_which_it_can_be_asked_for(home: Path, tmp_path: Path, name: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")

    async def check(client: httpx.AsyncClient, _service: Service, _loads: Loads) -> None:
        response = await client.post(MODELS, json={"path": str(path), "name": name})
        assert response.status_code == 400
        assert "--name" in response.json()["error"]["hint"]

    with_client(home, check)


def test_every_model_is_listed_with_its_window_and_none_is_loaded_for_it(home: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(window=777))

    async def check(client: httpx.AsyncClient, service: Service, loads: Loads) -> None:
        assert (await client.post(MODELS, json={"path": str(path)})).json()["window_tokens"] == 777
        await answer(service, ask(user("hi")))
        listed = {m["id"]: m["max_model_len"] for m in (await client.get("/v1/models")).json()["data"]}
        assert listed["tiny"] == 777
        assert listed["fake"] == 1024
        assert listed["broken"] is None
        assert (await client.get("/v1/models/tiny")).json()["max_model_len"] == 777
        assert loads.names == ["fake"]

    with_client(home, check)


@pytest.mark.parametrize(("setting", "value"), [("model.window_tokens", 500), ("cache.kv_tokens", 600)])
def test_a_listed_window_keeps_to_the_settings(home: Path, tmp_path: Path, setting: str, value: int) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(window=777))

    async def check(client: httpx.AsyncClient, _service: Service, _loads: Loads) -> None:
        await client.post(MODELS, json={"path": str(path)})
        assert (await client.get("/v1/models/tiny")).json()["max_model_len"] == value

    with_client(home, check, **{setting: value})


def test_a_name_that_stands_for_another_file_now_is_not_shown_as_what_is_loaded(home: Path, tmp_path: Path) -> None:
    old = write_tiny_gguf(tmp_path / "old.gguf", shape=Shape(window=700))
    new = write_tiny_gguf(tmp_path / "new.gguf", shape=Shape(window=777))

    async def check(client: httpx.AsyncClient, service: Service, _loads: Loads) -> None:
        await client.post(MODELS, json={"path": str(old), "name": "tiny"})
        await answer(service, ask(user("hi"), model="tiny"))
        assert (await client.get(f"{MODELS}/tiny")).json()["summary"]["loaded"] is True
        await client.delete(f"{MODELS}/tiny")
        await client.post(MODELS, json={"path": str(new), "name": "tiny"})
        shown = (await client.get(f"{MODELS}/tiny")).json()
        assert (shown["summary"]["path"], shown["summary"]["loaded"]) == (str(new), False)
        assert (shown["window_tokens"], shown["capabilities"]) == (777, {})
        assert (await client.get("/v1/models/tiny")).json()["max_model_len"] == 777

    with_client(home, check)


def test_showing_another_model_keeps_the_loaded_one_and_what_it_computed(home: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(window=777))

    async def check(client: httpx.AsyncClient, service: Service, loads: Loads) -> None:
        await client.post(MODELS, json={"path": str(path)})
        await answer(service, ask(user("hi")))
        shown = (await client.get(f"{MODELS}/tiny")).json()
        assert shown["summary"]["loaded"] is False
        assert (shown["architecture"], shown["trained_window_tokens"], shown["window_tokens"]) == ("llama", 777, 777)
        assert shown["capabilities"] == {}
        loaded = (await client.get(f"{MODELS}/fake")).json()
        assert loaded["summary"]["loaded"] is True
        assert loaded["capabilities"]["max_sequences"] > 0
        assert "cut off" in (await client.get(f"{MODELS}/broken")).json()["summary"]["problem"]
        assert loads.names == ["fake"]
        assert (await answer(service, ask(user("hi")))).reuse.reused_tokens > 0

    with_client(home, check)


@pytest.mark.parametrize("odd", ["x\ud800y", "x\x00y"])
@pytest.mark.parametrize("field", ["name", "url", "model", "key_env", "key_file"])
def test_texts_that_cannot_be_written_are_refused_for_a_remote_model(home: Path, field: str, odd: str) -> None:
    async def check(client: httpx.AsyncClient, _service: Service, _loads: Loads) -> None:
        place = {"url": "http://127.0.0.1:9/v1", "model": "m"}
        place |= {} if field == "name" else {field: f"http://{odd}:9/v1" if field == "url" else f"/{odd}"}
        body = {"name": odd if field == "name" else "far", "remote": place}
        refused = await client.post(MODELS, content=json.dumps(body))
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["code"] == "bad_request"
        assert "far" not in (await client.get(MODELS)).text

    with_client(home, check)
