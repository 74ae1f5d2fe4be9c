"""Models that memory can ask over HTTP: any server that speaks OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from akashic_daemon.errors import EngineError
from akashic_daemon.memory.compactors import Reply

_CONNECT_LIMIT_S = 10.0
_MOST_BODY_BYTES = 4 << 20


class RemoteModel:
    """A model at an OpenAI-compatible base URL, such as http://127.0.0.1:8080/v1."""

    def __init__(self, url: str, model: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._transport = transport

    @property
    def name(self) -> str:
        """The model's name, and where it is."""
        return f"{self._model} at {self._url}"

    async def ask(self, system: str, question: str, schema: Mapping[str, Any], max_tokens: int) -> Reply:
        """Return the answer. Raises EngineError when the server can't be reached or answers otherwise."""
        body = {
            "model": self._model,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "strict": True, "schema": dict(schema)},
            },
        }
        doing = f"asking {self.name} about memory"
        # No limit on reading: a model may think for long. Whoever asks has a limit for the whole.
        limits = httpx.Timeout(None, connect=_CONNECT_LIMIT_S)
        try:
            async with (
                httpx.AsyncClient(timeout=limits, transport=self._transport, trust_env=False) as client,
                client.stream("POST", f"{self._url}/chat/completions", json=body) as response,
            ):
                raw = b""
                async for piece in response.aiter_bytes():
                    raw += piece
                    if len(raw) > _MOST_BODY_BYTES:
                        raise EngineError(f"{doing}: it answers with more than {_MOST_BODY_BYTES >> 20} MiB")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineError(
                f"{doing}: {error or type(error).__name__}", hint="check memory.compactor, or set it to extractive"
            ) from error
        if response.status_code != httpx.codes.OK:
            raise EngineError(f"{doing}: it answers {response.status_code}: {raw[:200].decode(errors='replace')}")
        return _reply(raw, doing, question)


def _reply(raw: bytes, doing: str, question: str) -> Reply:
    try:
        answer = httpx.Response(200, content=raw).json()
        choice = answer["choices"][0]
        text, is_cut = choice["message"]["content"], choice.get("finish_reason") == "length"
        usage = answer.get("usage") or {}
        tokens = usage.get("total_tokens")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise EngineError(f"{doing}: its answer is no chat completion: {error!r}") from error
    if not isinstance(text, str):
        raise EngineError(f"{doing}: its answer has no text")
    # A server that doesn't count: about four bytes a token.
    counted = tokens if isinstance(tokens, int) else (len(question) + len(text)) // 4
    return Reply(text, counted, is_cut)
