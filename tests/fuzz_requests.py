"""Requests that no client should send: each is made from a seed and a number alone, so that any of them can be sent again.

What is mutated: bytes, structure, values, headers, paths, queries, and how the request goes over the wire.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from akashic_daemon.api.openapi_table import EXAMPLES, OPERATIONS
from api_bodies import BODIES, ODD, mutated

DELIVERIES = (
    "whole",
    "whole",
    "whole",
    "chunked",
    "bad chunk",
    "slow",
    "half closed",
    "leaves",
    "leaves late",
    "twice",
)
_NEVER = {("GET", "/akashic/v1/stats/stream")}
"""Has no end: it is read for a moment only."""
_SESSIONS = ("s", "a", "b", "canary", ".", "..", "%2e%2e", "x" * 129, "%00", "é", "a%2Fb", "a b", "-1", "null", "%ff")
_NAMES = {
    "session": _SESSIONS,
    "id": ("resp_1", "x" * 300, "%00", "..", "input_tokens", "t1"),
    "name": ("none", "fäke", "../x"),
}
_LONGEST = 400


@dataclass(slots=True)
class Sent:
    """One request as bytes, and how they are delivered."""

    number: int
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    delivery: str
    endless: bool = False
    marks: list[str] = field(default_factory=list)
    """What was done to it, for people."""

    @property
    def head(self) -> bytes:
        """Return request line and headers."""
        lines = [f"{self.method} {self.target} HTTP/1.1", *(f"{name}: {value}" for name, value in self.headers)]
        return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"

    def __str__(self) -> str:
        return f"#{self.number} {self.method} {self.target[:120]} ({', '.join([self.delivery, *self.marks])})"


def make(seed: int, number: int, auth: str, host: str) -> Sent:
    """Return request `number` of a run."""
    dice = random.Random(f"{seed}:{number}")
    method, path = dice.choice(_OPERATIONS)
    marks: list[str] = []
    body = _body(dice, method, path, marks)
    target = _target(dice, path, OPERATIONS[method, path].query, marks)
    delivery = dice.choice(DELIVERIES)
    headers = [("Host", host), ("Authorization", auth), ("Content-Type", "application/json")]
    if path.startswith("/v1/messages"):
        headers.append(("anthropic-version", "2023-06-01"))
    if dice.random() < 0.15:
        _spoil_headers(dice, headers, marks)
    if dice.random() < 0.03:
        method = dice.choice(("PATCH", "OPTIONS", "TRACE", "HEAD", "PUT", "GET", "POST", "BREW"))
        marks.append("another method")
    return Sent(number, method, target, headers, body, delivery, ("GET", path) in _NEVER, marks)


_OPERATIONS = [
    *((method, path) for method, path in OPERATIONS if (method, path) != ("DELETE", "/akashic/v1/models/{name}")),
    *(("POST", path) for path in BODIES for _ in range(4)),
]


def _target(dice: random.Random, path: str, query: Any, marks: list[str]) -> str:
    target = path.replace("{name:path}", "{name}")
    for name, values in _NAMES.items():
        chosen = dice.choice(values) if dice.random() < 0.6 else values[0]
        target = target.replace(f"{{{name}}}", chosen)
    given = [f"{name}={dice.choice(_QUERY_VALUES)}" for name in query if dice.random() < 0.6]
    if dice.random() < 0.03:
        target = dice.choice(
            (f"/{target}", f"{target}/", target.upper(), f"{target}/../../etc/passwd", target[:-2], "*")
        )
        marks.append("another path")
    return target + ("?" + "&".join(given) if given else "")


_QUERY_VALUES = (
    "0",
    "1",
    "-1",
    "1e999",
    "nan",
    "%00",
    "x" * 200,
    "",
    "%ff",
    "asc",
    "99999999999999999999",
    "[]",
    "codex",
)


def _body(dice: random.Random, method: str, path: str, marks: list[str]) -> bytes:
    told = OPERATIONS[method, path]
    if told.upload:
        return _upload(dice)
    if told.body is None:
        return b"" if dice.random() < 0.8 else b"{}"
    body = copy.deepcopy(BODIES[path] if path in BODIES else EXAMPLES[told.body])
    if path.startswith("/v1/"):
        body.pop("model", None)
    if dice.random() < 0.6:
        body = mutated(body, dice.randrange(2**32))
        marks.append("mutated")
    if dice.random() < 0.25:
        name, change = dice.choice(sorted(_CHANGES.items()))
        change(dice, body)
        marks.append(name)
    _bound(body)
    if dice.random() < 0.4 and not path.endswith("_tokens"):
        body["stream"] = True
    data = json.dumps(body).encode()
    if dice.random() < 0.15:
        name, spoil = dice.choice(sorted(_BYTES.items()))
        data = spoil(dice, data)
        marks.append(name)
    return data


def _upload(dice: random.Random) -> bytes:
    line = json.dumps({"role": "user", "content": "hello"}).encode() + b"\n"
    kind = dice.randrange(5)
    if kind == 0:
        return dice.randbytes(dice.randrange(2000))
    if kind == 1:
        return b"\x89AKASHIC\r\n\x1a\n" + dice.randbytes(dice.randrange(300))
    if kind == 2:
        return line * dice.randrange(50) + dice.randbytes(20)
    return _flipped(dice, line * 5) if kind == 3 else line * 2


def _bound(body: dict[str, Any]) -> None:
    """Keep answers short: what is tested isn't how long an engine can talk."""
    for name in ("max_tokens", "max_output_tokens", "max_completion_tokens"):
        if isinstance(body.get(name), int) and body[name] > _LONGEST:
            body[name] = _LONGEST


def _deep(dice: random.Random, body: dict[str, Any]) -> None:
    value: Any = 1
    for _ in range(dice.choice((50, 199, 201, 900))):
        value = [value] if dice.random() < 0.5 else {"a": value}
    body[dice.choice(("messages", "tools", "metadata", "zeta", "input"))] = value


def _many_messages(dice: random.Random, body: dict[str, Any]) -> None:
    role = dice.choice(("user", "assistant", "system", "tool", "user"))
    many = [{"role": role if i % 3 else "user", "content": f"{i}"} for i in range(dice.choice((1000, 10_000)))]
    body["input" if "input" in body else "messages"] = many


def _image(dice: random.Random, body: dict[str, Any]) -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    part: dict[str, Any] = dice.choice((
        {"type": "image_url", "image_url": {"url": url}}, {"type": "input_image", "image_url": url},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
    ))  # fmt: skip
    body["input" if "input" in body else "messages"] = [{"role": "user", "content": [part]}]


def _numbers(dice: random.Random, body: dict[str, Any]) -> None:
    name = dice.choice(
        ("max_tokens", "temperature", "top_p", "top_k", "seed", "n", "max_output_tokens", "turn", "at_message")
    )
    body[name] = dice.choice((float("nan"), float("inf"), -1, 0, 2**64, -(2**63), 1e-320, "1", True, 10**400))


def _session(dice: random.Random, body: dict[str, Any]) -> None:
    body["akashic"] = {
        "session": dice.choice(("s", "a", "b", "..", "x" * 200, None, 5)),
        **dice.choice(({}, {"cache_ops": [dice.choice(ODD)]}, {"policy": "tool-rolling-drop:keep=1"}, {"priority": "no"},
                       {"cache_ops": [{"op": "drop", "messages": [0]}]}, {"cache_ops": [{"op": "drop", "tokens": [[0, 9e9]]}]},
                       {"cache_ops": [{"op": "repos"}] * 50}, {"edit_reuse": "drop"}, {"hint": {"expect_s": -1}})),
    }  # fmt: skip


def _patterns(dice: random.Random, body: dict[str, Any]) -> None:
    """Ask for an answer that a grammar must hold: patterns that could take for ever, or are none."""
    pattern = dice.choice(
        ("(a+)+$", "(" * 200 + ")" * 200, "[", "a{1,100000}", "\\p{L}+", "^(?=a)b", "(a|aa)*" * 20, "a" * 5000)
    )
    schema: dict[str, Any] = dice.choice((
        {"type": "string", "pattern": pattern}, {"$ref": "#"}, {"type": "array", "minItems": 10**6, "items": {}},
        {"enum": ["x" * 100] * 500}, {"anyOf": [{}] * 300}, {"type": "nonsense"}, {"$ref": "http://example.com/x"},
        {"type": "object", "properties": {str(i): {"type": "string"} for i in range(300)}},
    ))  # fmt: skip
    body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


_CHANGES: dict[str, Callable[[random.Random, dict[str, Any]], None]] = {
    "deep": _deep,
    "many messages": _many_messages,
    "image": _image,
    "numbers": _numbers,
    "session": _session,
    "patterns": _patterns,
    "long text": lambda dice, body: body.update(prompt="x" * dice.choice((900, 5000, 2_000_000)), messages=[]),
    "model": lambda dice, body: body.update(model=dice.choice(("gpt-9", "../fake", "", 5, "x" * 5000, "\x00"))),
    "empty": lambda dice, body: body.update(
        {dice.choice(sorted(body) or ["x"]): dice.choice(([], {}, "", [""], [{}]))}
    ),
}


def _flipped(dice: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(dice.randint(1, 8) if out else 0):
        out[dice.randrange(len(out))] = dice.randrange(256)
    return bytes(out)


def _inserted(dice: random.Random, data: bytes) -> bytes:
    at = dice.randrange(len(data) + 1)
    return (
        data[:at]
        + dice.choice((b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"NaN", b"//", b"\xef\xbb\xbf", b"[" * 3000))
        + data[at:]
    )


_BYTES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "bytes flipped": _flipped,
    "bytes inserted": _inserted,
    "cut off": lambda dice, data: data[: dice.randrange(len(data) + 1)],
    "utf-16": lambda _dice, data: data.decode("utf-8", "replace").encode("utf-16"),
    "random bytes": lambda dice, _data: dice.randbytes(dice.randrange(3000)),
    "twice the keys": lambda _dice, data: data[:-1] + b"," + data[1:],
    "no object": lambda dice, _data: dice.choice((b"[]", b"null", b'"x"', b"1", b"")),
}


def _spoil_headers(dice: random.Random, headers: list[tuple[str, str]], marks: list[str]) -> None:
    name, header = dice.choice((
        ("no token", None), ("wrong token", ("Authorization", "Bearer x")), ("a foreign page", ("Origin", "http://evil.example")),
        ("another host", ("Host", "evil.example")), ("a long header", ("X-Long", "x" * dice.choice((5000, 200_000)))),
        ("an odd header", ("X-Odd", "\x01\xff")), ("many headers", None), ("gzip said", ("Content-Encoding", "gzip")),
        ("expects", ("Expect", "100-continue")), ("upgrades", ("Upgrade", "websocket")), ("no type", ("Content-Type", "image/png")),
        ("a path in a header", ("X-Forwarded-For", "../../x")), ("a method in a header", ("X-HTTP-Method-Override", "DELETE")),
    ))  # fmt: skip
    marks.append(name)
    if name == "no token":
        del headers[1]
    elif name == "many headers":
        headers.extend((f"X-{i}", str(i)) for i in range(300))
    elif header is not None:
        headers[:] = [pair for pair in headers if pair[0] != header[0]] + [header]
