"""A request that is given up in the middle of its prefill, as by a client's timeout: at a token count, not at a time."""

from __future__ import annotations

import asyncio

import httpx

from akashic_cli.bench.own_daemon import OwnDaemon
from akashic_cli.bench.request import Target
from akashic_cli.bench.transcripts import JsonObject
from akashic_daemon.errors import AkashicError
from akashic_daemon.protocol.native import SessionActivity, Stats

_POLL_S = 0.02
_COMPUTING = ("prefill", "decode")


def cancelled_try(daemon: OwnDaemon, target: Target, messages: list[JsonObject], session: str, share: float) -> int:
    """Send a request, close its connection once that share of its prompt is there, and return the tokens that it computed.

    A step that runs meanwhile still counts. One that ends before anybody looked has computed what isn't told: 0.
    """
    return asyncio.run(_try(daemon, target, messages, session, share))


async def _try(daemon: OwnDaemon, target: Target, messages: list[JsonObject], session: str, share: float) -> int:
    transport = httpx.AsyncHTTPTransport(uds=target.uds)

    async def send() -> None:
        async with httpx.AsyncClient(transport=transport, timeout=None) as http:
            answer = await http.post(f"{target.base_url}/chat/completions", json=target.body(messages, session))
            if answer.is_error:
                raise AkashicError(f"sending a request that is to be aborted: HTTP {answer.status_code}: {answer.text}")

    sending = asyncio.create_task(send())
    seen: SessionActivity | None = None
    while not sending.done() and (seen is None or seen.prefilled_tokens < share * seen.prompt_tokens):
        seen = await asyncio.to_thread(_look, daemon, session) or seen
        await asyncio.sleep(_POLL_S)
    sending.cancel()
    try:
        await sending
    except asyncio.CancelledError:
        pass
    except httpx.HTTPError as error:
        raise AkashicError(f"sending a request that is to be aborted: {error or type(error).__name__}") from error
    while (still := await asyncio.to_thread(_look, daemon, session, queued_too=True)) is not None:
        seen = still if still.state in _COMPUTING else seen
        await asyncio.sleep(_POLL_S)
    return seen.prefilled_tokens - seen.reused_tokens if seen is not None else 0


def _look(daemon: OwnDaemon, session: str, *, queued_too: bool = False) -> SessionActivity | None:
    """Return how far a session's request is, None when it doesn't compute."""
    stats = Stats.model_validate(daemon.client.get("/stats"))
    for found in stats.activity:
        if found.session == session and (queued_too or found.state in _COMPUTING):
            return found
    return None
