"""Asking another server: tries, limits, faults, and streams cut into any pieces."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from akashic_daemon.api.border import error_response
from akashic_daemon.errors import (
    AkashicError,
    BadRequest,
    NotFound,
    Overloaded,
    PromptTooLong,
    UpstreamError,
    UpstreamTimeout,
)
from akashic_daemon.remote.client import Limits
from akashic_daemon.remote.endpoint import Endpoint
from remote_server import URL, Answer, Stream, Upstream, refuses, streams, text_piece, unreachable

LIMITS = Limits(connect_s=5, first_token_s=0.2, silence_s=0.2, retry_s=2)
PIECES = [text_piece("né"), text_piece("e\n\ndata: [DONE]")]


def heard(upstream: Upstream, session: str | None = "s-1", key_env: str = "") -> list[Any]:
    async def listen() -> list[Any]:
        client = upstream.client(Endpoint(URL, "m", key_env=key_env), LIMITS)
        try:
            return [p async for p in client.stream("/chat/completions", b"{}", session=session)]
        finally:
            await client.close()

    return asyncio.run(listen())


@pytest.mark.parametrize("split", [0, 1, 7])
def test_a_stream_is_read_however_it_is_cut(split: int) -> None:
    upstream = Upstream([streams(PIECES, split=split)])
    assert heard(upstream) == PIECES
    assert upstream.requests[0].headers["x-session-id"] == "s-1"
    assert "authorization" not in upstream.requests[0].headers


def test_the_key_goes_along_and_the_session_only_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "k")
    upstream = Upstream([streams(PIECES)])
    heard(upstream, session=None, key_env="A_KEY")
    assert upstream.requests[0].headers["authorization"] == "Bearer k"
    assert "x-session-id" not in upstream.requests[0].headers


@pytest.mark.parametrize("fault", [refuses(429), refuses(503), refuses(500), unreachable])
def test_a_passing_fault_is_tried_again_while_nothing_has_come(fault: Answer) -> None:
    upstream = Upstream([fault, fault, streams(PIECES)])
    assert heard(upstream) == PIECES
    assert upstream.pauses_s == [0.25, 0.5]


def test_the_pause_that_a_server_asks_for_is_kept_and_counts() -> None:
    upstream = Upstream([refuses(429, **{"retry-after": "1.5"}), streams(PIECES)])
    heard(upstream)
    assert upstream.pauses_s == [1.5]
    patient = Upstream([refuses(429, "slow down", **{"retry-after": "60"})])
    with pytest.raises(Overloaded, match="slow down") as caught:
        heard(patient)
    assert caught.value.details["retry_after_s"] == 60
    assert patient.pauses_s == []


@pytest.mark.parametrize("pause", ["inf", "nan", "-3", "1e300", "Tue, 01 Dec 2026 02:00:00 GMT"])
def test_a_pause_that_nobody_can_mean_is_passed_on_to_no_client(pause: str) -> None:
    upstream = Upstream([refuses(429, "slow down", **{"retry-after": pause})])
    with pytest.raises(Overloaded) as caught:
        heard(upstream)
    assert error_response("/v1/chat/completions", caught.value).headers["retry-after"] == "5"
    assert len(upstream.requests) > 1


@pytest.mark.parametrize("said", [{"error": {}}, {"error": {"code": 5}}, {}])
def test_a_refusal_without_words_says_that(said: dict[str, Any]) -> None:
    upstream = Upstream([lambda _request: httpx.Response(501, json=said)])
    with pytest.raises(UpstreamError, match="answered 501: nothing more"):
        heard(upstream)


def test_a_server_that_stays_away_is_an_error_within_the_limit() -> None:
    upstream = Upstream([unreachable])
    with pytest.raises(UpstreamError, match="is the server running"):
        heard(upstream)
    assert sum(upstream.pauses_s) <= LIMITS.retry_s
    assert len(upstream.requests) > 2


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "bad thing", BadRequest),
        (400, "This model's maximum context length is 8 tokens", PromptTooLong),
        (400, "the request exceeds the available context size", PromptTooLong),
        (401, "who are you", UpstreamError),
        (404, "no such model", NotFound),
        (501, "not here", UpstreamError),
    ],
)
def test_a_refusal_is_told_in_the_server_s_words_and_not_tried_again(
    status: int, message: str, kind: type[AkashicError]
) -> None:
    upstream = Upstream([refuses(status, message)])
    with pytest.raises(kind, match=message):
        heard(upstream)
    assert len(upstream.requests) == 1


def test_an_answer_that_breaks_off_is_never_begun_anew() -> None:
    for after in ("cut", "short"):
        upstream = Upstream([streams(PIECES, after)])
        with pytest.raises(UpstreamError, match="broke off after 2 pieces"):
            heard(upstream)
        assert len(upstream.requests) == 1


def test_silence_ends_at_the_limit_that_is_named() -> None:
    with pytest.raises(UpstreamTimeout, match=r"remote\.silence_s"):
        heard(Upstream([streams(PIECES, "hang")]))
    with pytest.raises(UpstreamTimeout, match=r"remote\.first_token_s"):
        heard(Upstream([streams([], "hang")]))


@pytest.mark.parametrize(("garbage", "said"), [(b"data: {nonsense\n\n", "nonsense"), (b"<html>hi</html>", "broke off")])
def test_garbage_is_an_error_that_says_what_it_is(garbage: bytes, said: str) -> None:
    with pytest.raises(UpstreamError, match=said):
        heard(Upstream([streams([garbage], "short")]))


def test_an_error_within_the_stream_is_an_error() -> None:
    with pytest.raises(UpstreamError, match="out of memory"):
        heard(Upstream([streams([text_piece("a"), {"error": {"message": "out of memory"}}])]))


def test_a_stream_that_nobody_reads_on_is_closed_there() -> None:
    stream = Stream(PIECES, "hang")

    async def leave() -> None:
        client = Upstream([lambda _request: httpx.Response(200, stream=stream)]).client(Endpoint(URL, "m"), LIMITS)
        pieces = client.stream("/chat/completions", b"{}")
        await anext(pieces)
        await pieces.aclose()
        assert stream.closed
        await client.close()

    asyncio.run(leave())


def test_a_list_of_models_that_is_none_is_named() -> None:
    async def ask(body: Any) -> Any:
        client = Upstream([lambda _request: httpx.Response(200, json=body)]).client(Endpoint(URL), LIMITS)
        try:
            return await client.models()
        finally:
            await client.close()

    assert asyncio.run(ask({"data": [{"id": "m"}]})) == [{"id": "m"}]
    with pytest.raises(UpstreamError, match="list of models"):
        asyncio.run(ask({"models": []}))
