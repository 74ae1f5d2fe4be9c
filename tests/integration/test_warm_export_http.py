"""Warm sessions over HTTP: the download, its errors, and the upload that takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from akashic_daemon.api.app import create_app
from akashic_daemon.errors import StoreError
from akashic_daemon.protocol import archive
from akashic_daemon.protocol.archive import Kind
from akashic_daemon.protocol.native import TurnRequest
from akashic_daemon.service import Service
from tiers_service import LONG, on_service

PREFIX = "/akashic/v1"


def client_of(service: Service) -> httpx.AsyncClient:
    """Return a client of the service's routes."""
    app = create_app(service, token=None, allowed_hosts=frozenset({"localhost"}))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def begin(service: Service) -> None:
    """Let a session have a turn."""
    async for _ in service.turn("one", TurnRequest(prompt=LONG, max_tokens=20)):
        pass


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the lines of an import's answer."""
    return [json.loads(line) for line in response.text.splitlines() if line.strip()]


def test_a_download_is_a_file_that_an_upload_takes(home: Path, tmp_path: Path) -> None:
    files: list[bytes] = []

    async def here(service: Service) -> None:
        await begin(service)
        async with client_of(service) as client:
            response = await client.get(f"{PREFIX}/sessions/one/export", params={"kv": "1"})
            assert response.status_code == 200
            assert response.headers["content-type"] == "application/octet-stream"
            files.append(response.content)
            plain = await client.get(f"{PREFIX}/sessions/one/export")
            assert json.loads(plain.text.splitlines()[0])["content"] == LONG

    async def there(service: Service) -> None:
        async with client_of(service) as client:
            response = await client.post(f"{PREFIX}/import", content=files[0])
            done = events(response)[-1]
            assert done["kind"] == "done"
            assert done["kv"]["tokens"] > 500
            assert done["problems"] == []
        assert not list(service.paths.cache_dir.glob("import-*"))

    on_service(home, here)
    last = archive.last_part(files[0][-archive.TAIL_BYTES :])
    assert last is not None
    assert last.kind == Kind.END
    other = tmp_path / "other"
    other.mkdir()
    on_service(other, there)


def test_a_session_that_does_not_exist_is_a_plain_404(home: Path) -> None:
    async def check(service: Service) -> None:
        async with client_of(service) as client:
            response = await client.get(f"{PREFIX}/sessions/nobody/export", params={"kv": "1"})
            odd = await client.get(f"{PREFIX}/sessions/nobody/export", params={"kv": "yes"})
        assert response.status_code == 404
        assert "nobody" in response.json()["error"]["message"]
        assert (odd.status_code, odd.json()["error"]["code"]) == (400, "bad_request")

    on_service(home, check)


def test_what_breaks_a_download_off_is_its_last_part(home: Path) -> None:
    async def check(service: Service) -> None:
        await begin(service)

        def broken(*_: object, **__: object) -> object:
            raise StoreError("the disk is gone")

        service.tiers.mover.call = broken  # type: ignore[method-assign]
        async with client_of(service) as client:
            response = await client.get(f"{PREFIX}/sessions/one/export", params={"kv": "1"})
        del service.tiers.mover.call
        last = archive.last_part(response.content)
        assert last is not None
        assert last.kind == Kind.FAIL
        assert last.head["message"] == "the disk is gone"

    on_service(home, check)


def test_a_file_that_holds_nothing_is_refused_with_the_name_that_it_was_sent_by(home: Path) -> None:
    async def check(service: Service) -> None:
        async with client_of(service) as client:
            response = await client.post(f"{PREFIX}/import", params={"file": "mine.aks"}, content=archive.begin())
        assert response.status_code == 400
        assert "mine.aks" in response.json()["error"]["message"]

    on_service(home, check)
