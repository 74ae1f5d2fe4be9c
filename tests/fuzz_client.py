"""Delivers odd requests over TCP, one connection each, and judges what comes back."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field

from fuzz_requests import Sent, make

ANSWER_LIMIT_S = 120.0
"""Nothing here takes a second on an idle machine: who gets no answer in this time has met a hang."""
_ODD_ENDS = frozenset({"bad chunk", "slow", "half closed", "leaves", "leaves late"})
"""Whoever sends like that may get no answer."""
_REFUSED_BY_THE_SERVER = 400


@dataclass(slots=True)
class Report:
    """What happened in a run; `failures` name requests that met a bug."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def fail(self, sent: Sent, why: str) -> None:
        """Remember a failure."""
        self.counts["FAILED"] += 1
        self.failures.append(f"{sent}: {why}")


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send, as whom."""

    port: int
    authorization: str


async def send_one(target: Target, sent: Sent, report: Report) -> None:
    """Send a request in its way and judge the answer."""
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            answer = await _deliver(target, sent)
    except TimeoutError:
        report.fail(sent, f"no end in {ANSWER_LIMIT_S:.0f} s")
        return
    except ConnectionRefusedError:
        report.fail(sent, "nobody listens any more")
        return
    except OSError:
        answer = b""
    if not answer:
        report.counts["no answer"] += 1
        if sent.delivery not in _ODD_ENDS and not sent.endless:
            report.fail(sent, "no answer")
        return
    _judge(sent, answer, report)


async def _deliver(target: Target, sent: Sent) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    dice = random.Random(sent.number)
    try:
        await _write(sent, writer, dice)
        if sent.delivery == "leaves":
            return b""
        if sent.delivery == "leaves late" or sent.endless:
            return await reader.read(200)
        return await reader.read(-1)
    finally:
        writer.close()


async def _write(sent: Sent, writer: asyncio.StreamWriter, dice: random.Random) -> None:
    close = b"Connection: close\r\n"
    length = f"Content-Length: {len(sent.body)}\r\n".encode()
    head, body = sent.head[:-2], sent.body
    if sent.delivery in ("chunked", "bad chunk"):
        writer.write(head + close + b"Transfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(body), step := max(1, len(body) // 5)):
            piece = body[at : at + step]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        writer.write(
            b"0\r\n\r\n" if sent.delivery == "chunked" else dice.choice((b"zz\r\n", b"-5\r\n", b"ffffffffffff\r\n"))
        )
        if sent.delivery == "bad chunk":
            writer.write_eof()
    elif sent.delivery == "slow":
        whole = head + close + length + b"\r\n" + body
        cut = dice.randrange(len(whole))
        for at in range(0, cut, step := max(1, cut // 4)):
            writer.write(whole[at : at + step])
            await writer.drain()
            await asyncio.sleep(0.005)  # other requests are served between the pieces
        writer.write_eof()
    elif sent.delivery == "half closed":
        writer.write(head + close + length + b"\r\n" + body)
        writer.write_eof()
    elif sent.delivery == "twice":
        whole = head + length + b"\r\n" + body
        writer.write(whole + head + close + length + b"\r\n" + body)
    else:
        writer.write(head + close + length + b"\r\n" + body)
    await writer.drain()


def _judge(sent: Sent, answer: bytes, report: Report) -> None:
    line, _, rest = answer.partition(b"\r\n")
    words = line.split(b" ")
    if not line.startswith(b"HTTP/1.1 ") or len(words) < 2 or not words[1].isdigit():
        report.fail(sent, f"no HTTP answer: {line[:100]!r}")
        return
    status = int(words[1])
    report.counts[str(status)] += 1
    if status >= 500 and b'"code":"overloaded"' not in rest:
        report.fail(sent, f"status {status}: {rest[-400:]!r}")
    elif b"an internal error" in rest:
        report.fail(sent, f"an internal error in a stream: {rest[-400:]!r}")
    elif (
        status >= 400
        and sent.method != "HEAD"
        and not sent.endless
        and sent.delivery not in _ODD_ENDS
        and sent.delivery != "twice"
    ):
        _judge_refusal(sent, status, rest, report)


def _judge_refusal(sent: Sent, status: int, rest: bytes, report: Report) -> None:
    head, _, body = rest.partition(b"\r\n\r\n")
    if status == _REFUSED_BY_THE_SERVER and b"application/json" not in head.lower():
        report.counts["refused by the HTTP server"] += 1  # what isn't HTTP doesn't reach our border
        return
    try:
        error = json.loads(body)["error"]
        assert error["message"]
        assert len(body) < 20_000
    except (ValueError, KeyError, TypeError, AssertionError):
        report.fail(sent, f"status {status} without an error that says why: {body[:300]!r}")


async def run(target: Target, *, seed: int, numbers: range, report: Report, workers: int = 8) -> None:
    """Send requests side by side."""
    waiting = iter(numbers)

    async def work() -> None:
        for number in waiting:
            sent = make(seed, number, target.authorization, f"127.0.0.1:{target.port}")
            await send_one(target, sent, report)

    await asyncio.gather(*(work() for _ in range(workers)))
