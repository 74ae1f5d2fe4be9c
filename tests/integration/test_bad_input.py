"""What no client should send, once over real HTTP in each API: refused in words, and the daemon goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from daemon_process import DaemonProcess
from fuzz_daemon import fuzzed_daemon, knows_its_prompt, lost, problems_in_log

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
IMAGE = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One daemon for all cases; at its end nothing is left, and its log tells of no bug."""
    daemon = fuzzed_daemon(tmp_path_factory.mktemp("d"))
    with daemon:
        yield daemon
        knows_its_prompt(daemon)
        status = daemon.end(120)
    assert problems_in_log(daemon) == []
    assert lost(daemon, status) == []


def body(path: str, **fields: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "x"}]
    if path == RESPONSES:
        return {"input": said, "max_output_tokens": 4, **fields}
    return {"messages": said, "max_tokens": 4, **fields}


def refused(daemon: DaemonProcess, path: str, sent: dict[str, Any] | bytes) -> tuple[int, str]:
    """Send a request; return the status and the message of the error, which has the API's shape."""
    content = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    with daemon.client() as client:
        response = client.post(path, content=content)
    told = response.json()
    assert (told.get("type") == "error") == (path == MESSAGES)
    return response.status_code, told["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_bytes_that_are_no_request_are_a_400_that_says_what_is_wrong(daemon: DaemonProcess, path: str) -> None:
    cases = {
        b"\xff\xfe{}": "UTF-8",
        b'{"temperature": NaN}': "NaN",
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}": "levels deep",
        b'{"messages": [': "not JSON",
        b"[]": "not an object",
    }
    for sent, words in cases.items():
        status, message = refused(daemon, path, sent)
        assert (status, words in message) == (400, True), message


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_impossible_values_are_a_400_that_names_the_field(daemon: DaemonProcess, path: str) -> None:
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    said = "input" if path == RESPONSES else "messages"
    for field, value in ((limit, -1), (limit, 0), (said, []), ("temperature", -3)):
        status, message = refused(daemon, path, body(path, **{field: value}))
        assert (status, field in message) == (400, True), message


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_an_unknown_model_is_a_404_that_lists_the_known_ones(daemon: DaemonProcess, path: str) -> None:
    status, message = refused(daemon, path, body(path, model="gpt-9"))
    assert status == 404
    assert "gpt-9" in message
    assert "fake" in message


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": IMAGE}}),
        (MESSAGES, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}),
        (RESPONSES, {"type": "input_image", "image_url": IMAGE}),
    ],
)
def test_an_image_is_refused_by_a_text_model_that_is_named(daemon: DaemonProcess, path: str, part: Any) -> None:
    said = [{"role": "user", "content": [part]}]
    status, message = refused(daemon, path, body(path, **{"input" if path == RESPONSES else "messages": said}))
    assert status == 400
    assert "fake" in message
    assert "image" in message


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_ten_thousand_messages_are_refused_with_counts(daemon: DaemonProcess, path: str) -> None:
    many = [{"role": ("user", "assistant")[i % 2], "content": f"message {i}"} for i in range(10_001)]
    status, message = refused(daemon, path, body(path, **{"input" if path == RESPONSES else "messages": many}))
    assert status == 400
    assert "tokens" in message
    assert "2048" in message.replace(",", "")


def test_a_body_over_the_limit_is_a_413_that_the_client_can_read(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        response = client.post(CHAT, content=b'{"x": "' + b"x" * (64 * 1024 * 1024) + b'"}')
    assert response.status_code == 413
    assert "67,108,864 bytes" in response.json()["error"]["message"]


def test_headers_over_the_limit_end_the_connection_and_not_the_daemon(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        try:
            status = client.get("/healthz", headers={"x-long": "x" * 1_000_000}).status_code
        except httpx.HTTPError:
            status = 400  # the server hung up before the client had sent all
        assert status in (400, 431)
        assert client.get("/healthz").status_code == 200
