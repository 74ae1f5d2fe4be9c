"""One streaming chat completion, measured."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from akashic_cli.bench.transcripts import JsonObject
from akashic_daemon.errors import AkashicError, DaemonNotRunning, UsageError, from_wire

REQUEST_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to measure: the base URL, a Unix socket to reach it through, and what every request carries."""

    base_url: str
    uds: str | None
    model: str | None
    api_key: str | None
    max_tokens: int
    extra: Mapping[str, Any]
    timeout_s: float = REQUEST_TIMEOUT_S

    def body(self, messages: list[JsonObject], session: str) -> JsonObject:
        """Return a request; `$SESSION` in `extra` becomes the session's name."""
        body: JsonObject = {
            "messages": messages,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.model is not None:
            body["model"] = self.model
        body.update(_named(dict(self.extra), session))
        return body

    def http(self) -> httpx.Client:
        """Return a connection pool of its own, as an agent has one."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.Client(
            transport=httpx.HTTPTransport(uds=self.uds) if self.uds else None,
            timeout=self.timeout_s,
            headers=headers,
        )


def parse_extra(text: str | None) -> dict[str, Any]:
    """Read `--extra`. Raises UsageError when it isn't a JSON object."""
    try:
        value = json.loads(text) if text else {}
    except ValueError as error:
        raise UsageError(
            f"reading --extra: {error}", hint="""--extra '{"akashic": {"edit_reuse": "drop"}}'"""
        ) from error
    if not isinstance(value, dict):
        raise UsageError("reading --extra: it is no JSON object", hint="""--extra '{"seed": 1}'""")
    return value


def _named(value: Any, session: str) -> Any:
    if isinstance(value, str):
        return value.replace("$SESSION", session)
    if isinstance(value, dict):
        return {key: _named(item, session) for key, item in value.items()}
    if isinstance(value, list):
        return [_named(item, session) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class Measured:
    """What one request cost. Tokens are those of the server's usage; `akashic` is that block of its response."""

    first_token_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    text: str
    akashic: JsonObject | None

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were not reused."""
        return self.prompt_tokens - self.cached_tokens


def measure(http: httpx.Client, target: Target, messages: list[JsonObject], session: str) -> Measured:
    """Send one request and read its stream to the end. Raises what the server answers."""
    url = f"{target.base_url.rstrip('/')}/chat/completions"
    started_s = time.perf_counter()
    first_s: float | None = None
    usage: JsonObject | None = None
    own: JsonObject | None = None
    text: list[str] = []
    try:
        with http.stream("POST", url, json=target.body(messages, session)) as response:
            if response.is_error:
                response.read()
                raise _refused(url, response)
            for event in _events(response, url):
                usage = event.get("usage") or usage
                own = event.get("akashic") or own
                for choice in event.get("choices") or ():
                    delta = choice.get("delta") or {}
                    if first_s is None and _has_output(delta):
                        first_s = time.perf_counter() - started_s
                    text.append(delta.get("content") or "")
    except httpx.ConnectError as error:
        raise DaemonNotRunning(f"sending a request to {url}: {error}", hint="is the server running?") from error
    except httpx.TransportError as error:
        raise AkashicError(f"reading the answer of {url}: {error or type(error).__name__}") from error
    except httpx.InvalidURL as error:
        raise UsageError(f"sending a request to {url}: {error}", hint="--base-url http://127.0.0.1:8080/v1") from error
    total_s = time.perf_counter() - started_s
    if usage is None:
        raise AkashicError(
            f"measuring {url}: its stream carries no usage", hint="it must know stream_options.include_usage"
        )
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Measured(
        first_token_s=total_s if first_s is None else first_s,
        total_s=total_s,
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        cached_tokens=int(cached),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        text="".join(text),
        akashic=own,
    )


def _has_output(delta: JsonObject) -> bool:
    return bool(delta.get("content") or delta.get("tool_calls") or delta.get("reasoning_content"))


def _events(response: httpx.Response, url: str) -> Any:
    for line in response.iter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError as error:
            raise AkashicError(f"reading the answer of {url}: an event is no JSON") from error
        if event.get("error"):
            raise _error(url, event["error"], "in the stream")
        yield event


def _refused(url: str, response: httpx.Response) -> AkashicError:
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = response.text[:500]
    return _error(url, error, f"HTTP {response.status_code}")


def _error(url: str, error: Any, where: str) -> AkashicError:
    if isinstance(error, dict):
        code, message = error.get("code"), error.get("message", error)
        known = from_wire({"code": code, "message": f"sending a request to {url}: {where}: {message}"})
        known.hint = error.get("hint")
        return known
    return AkashicError(f"sending a request to {url}: {where}: {error}")
