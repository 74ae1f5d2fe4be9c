"""Streams at the border: gone clients, silence, errors in the middle, slow readers, uploads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.api import stream
from akashic_daemon.api.app import create_app
from akashic_daemon.api.spool import remove_left_uploads, spool
from akashic_daemon.errors import EngineError, Overloaded, StoreUnwritable
from akashic_daemon.protocol.native import Reuse
from akashic_daemon.schedule.events import GenerationEvent, Started, TextDelta
from echo_service import CHAT, Caller, EchoService, finished, run
from served_app import header

STARTED = Started("req-1", "s", "echo", 7, Reuse())


def chat(*, streamed: bool) -> list[bytes | None]:
    body = {"messages": [{"role": "user", "content": "a b c"}], "stream": streamed}
    return [json.dumps(body).encode()]


async def for_ever() -> AsyncGenerator[GenerationEvent, None]:
    await asyncio.Event().wait()
    yield STARTED


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_during_prefill_closes_its_request(home: Path, streamed: bool) -> None:
    async def check() -> None:
        service = EchoService(home, for_ever)
        caller = Caller(service, CHAT, chat(streamed=streamed))
        task = asyncio.create_task(create_app(service, token=None)(caller.scope, caller.receive, caller.send))
        await service.started.wait()
        assert service.closed == 0
        caller.left.set()
        await task
        assert service.closed == 1

    run(check)


def test_silence_is_filled_with_comments_from_the_start(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "KEEPALIVE_S", 0.01)

    async def check() -> None:
        service = EchoService(home, for_ever)
        caller = Caller(service, CHAT, chat(streamed=True))
        task = asyncio.create_task(create_app(service, token=None)(caller.scope, caller.receive, caller.send))
        while caller.text.count(": still working\n\n") < 2:
            await asyncio.sleep(0)
        caller.left.set()
        await task
        assert caller.status == 200

    run(check)


def test_silence_is_filled_between_chunks_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "KEEPALIVE_S", 0.01)
    sent: list[bytes] = []
    filled = asyncio.Event()

    async def halting() -> AsyncIterator[bytes]:
        yield b"one"
        await filled.wait()
        yield b"two"

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])
            if b"still here" in message["body"]:
                filled.set()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def check() -> None:
        answer = stream.EventStream(
            halting(), media_type="text/plain", keepalive=b"still here", on_error=lambda _e: b""
        )
        await answer({"type": "http"}, receive, send)

    run(check)
    said = b"".join(sent)
    assert said.startswith(b"one")
    assert said.replace(b"still here", b"") == b"onetwo"
    assert b"still here" in said


@pytest.mark.parametrize("streamed", [True, False])
def test_an_error_before_the_first_event_keeps_its_status(home: Path, streamed: bool) -> None:
    async def refused() -> AsyncGenerator[GenerationEvent, None]:
        raise Overloaded("the queue is full")
        yield STARTED

    async def check() -> None:
        service = EchoService(home, refused)
        caller = Caller(service, CHAT, chat(streamed=streamed))
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)
        assert caller.status == 503
        assert header(caller, "retry-after") == "5"
        assert json.loads(caller.text)["error"]["type"] == "server_error"

    run(check)


@pytest.mark.parametrize(
    ("error", "code"), [(EngineError("the step failed"), "engine"), (ZeroDivisionError("secret"), "internal")]
)
def test_an_error_in_the_middle_is_the_last_event_of_the_stream(home: Path, error: Exception, code: str) -> None:
    async def breaks() -> AsyncGenerator[GenerationEvent, None]:
        yield STARTED
        yield TextDelta("some", 1)
        raise error

    async def check() -> None:
        service = EchoService(home, breaks)
        caller = Caller(service, CHAT, chat(streamed=True))
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)
        events = [json.loads(e.removeprefix("data: ")) for e in caller.text.split("\n\n") if e]
        assert events[-1]["error"]["code"] == code
        assert "secret" not in caller.text
        assert caller.sent[-1]["more_body"] is False

    run(check)


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_that_was_cut_off_is_an_error_and_no_stop(home: Path, streamed: bool) -> None:
    async def cut_off() -> AsyncGenerator[GenerationEvent, None]:
        yield STARTED
        yield TextDelta("some", 1)
        yield finished("some", 1, "cancelled")

    async def check() -> None:
        service = EchoService(home, cut_off)
        caller = Caller(service, CHAT, chat(streamed=streamed))
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)
        assert '"code":"cancelled"' in caller.text
        assert '"finish_reason":"stop"' not in caller.text
        assert "[DONE]" not in caller.text

    run(check)


def test_events_that_are_ready_together_go_out_in_one_send(home: Path) -> None:
    async def check() -> None:
        service = EchoService(home)
        caller = Caller(service, CHAT, chat(streamed=True))
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)
        assert caller.text.endswith("data: [DONE]\n\n")
        assert len([m for m in caller.sent if m["type"] == "http.response.body"]) == 1

    run(check)


def test_what_comes_alone_is_sent_by_who_has_it_and_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_TOGETHER_S", -1.0)  # nothing counts as coming together
    queued: list[object] = []
    put = asyncio.Queue.put

    async def counted(self: asyncio.Queue[object], item: object) -> None:
        queued.append(item)
        await put(self, item)

    async def check() -> None:
        sent: list[bytes] = []
        arrived = asyncio.Event()

        async def source() -> AsyncIterator[bytes]:
            for number in range(20):
                arrived.clear()
                yield b"%d " % number
                await arrived.wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                sent.append(message["body"])
                arrived.set()

        async def receive() -> dict[str, str]:
            await asyncio.Event().wait()
            raise AssertionError

        answer = stream.EventStream(source(), media_type="t", keepalive=None, on_error=lambda _e: b"")
        await answer({"type": "http"}, receive, send)
        assert b"".join(sent).split() == [b"%d" % number for number in range(20)]
        assert 1 <= len(queued) <= 3  # the first, with which the headers go out, and the end

    monkeypatch.setattr(asyncio.Queue, "put", counted)
    run(check)


def test_a_client_that_does_not_read_holds_the_source_back() -> None:
    async def check() -> None:
        made = 0
        stalled, go_on = asyncio.Event(), asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            nonlocal made
            while made < 5000:
                made += 1
                yield b"x"

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                stalled.set()
                await go_on.wait()

        async def receive() -> dict[str, Any]:
            await stalled.wait()
            for _ in range(2000):  # Turns of the loop in which an unheld source would run on.
                await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        answer = stream.EventStream(endless(), media_type="text/plain", keepalive=None, on_error=lambda _e: b"")
        await answer({"type": "http"}, receive, send)
        assert 0 < made < 1000

    run(check)


def test_a_source_that_loses_a_cancellation_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_CANCEL_AGAIN_S", 0.001)
    lost: list[BaseException] = []

    async def source() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError as error:
                if lost:
                    raise
                lost.append(error)

    async def check() -> None:
        left = asyncio.Event()

        async def receive() -> dict[str, str]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(_message: Any) -> None:
            left.set()

        answer = stream.EventStream(source(), media_type="t", keepalive=None, on_error=lambda _e: b"")
        await answer({"type": "http"}, receive, send)
        assert len(lost) == 1

    run(check)


def test_an_upload_is_read_whole_and_leaves_no_file(home: Path) -> None:
    async def check() -> None:
        service = EchoService(home)
        caller = Caller(service, "/akashic/v1/import", [b"x" * 70_000, b"y" * 5])
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)
        assert json.loads(caller.text)["read_bytes"] == 70_005
        assert list(service.paths.cache_dir.iterdir()) == []

    run(check)


def test_an_upload_that_breaks_off_leaves_no_file(home: Path) -> None:
    async def check() -> None:
        service = EchoService(home)
        caller = Caller(service, "/akashic/v1/import", [b"x" * 70_000, None])
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)
        assert caller.sent == []
        assert list(service.paths.cache_dir.iterdir()) == []

    run(check)


def test_an_upload_whose_client_has_left_before_it_is_read_leaves_no_file(home: Path) -> None:
    async def check() -> None:
        service = EchoService(home)
        caller = Caller(service, "/akashic/v1/import", [b"x"])
        caller.left.set()
        await create_app(service, token=None)(caller.scope, caller.receive, caller.send)
        assert list(service.paths.cache_dir.iterdir()) == []

    run(check)


def test_a_disk_that_takes_no_upload_is_named(home: Path) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"x"

    async def check() -> None:
        (home / "cache").write_text("a file stands where the folder should be")
        with pytest.raises(StoreUnwritable, match="cache"):
            await spool(parts(), home / "cache")

    run(check)


def test_uploads_of_a_killed_daemon_are_removed_and_other_files_stay(home: Path) -> None:
    (home / "import-abc").write_text("x")
    (home / "models.json").write_text("x")
    assert remove_left_uploads(home) == 1
    assert [p.name for p in home.iterdir()] == ["models.json"]
    assert remove_left_uploads(home / "none") == 0


KEEPALIVES = {
    "/v1/chat/completions": b": still working\n\n",
    "/v1/completions": b": still working\n\n",
    "/v1/responses": b": still working\n\n",
    "/v1/messages": b'event: ping\ndata: {"type":"ping"}\n\n',
}


ASKED: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}]},
}


class OwnClock:
    """What a stream knows of asyncio, with a clock that goes on when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def get_running_loop(self) -> OwnClock:
        return self

    def time(self) -> float:
        return self.now_s

    async def sleep(self, pause_s: float) -> None:
        self._sleepers.append((self.now_s + pause_s, asyncio.get_running_loop().create_future()))
        await self._sleepers[-1][1]

    async def go_on(self) -> None:
        """Wake who sleeps next, and wait until it sleeps again."""
        while not self._sleepers:
            await asyncio.sleep(0)
        at_s, future = self._sleepers.pop()
        self.now_s = max(self.now_s, at_s)
        future.set_result(None)
        while not self._sleepers:
            await asyncio.sleep(0)


@pytest.mark.parametrize("path", KEEPALIVES)
def test_no_silence_of_a_long_prefill_lasts_15_seconds(home: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    clock, sent_s, bodies = OwnClock(), list[float](), list[bytes]()
    monkeypatch.setattr(stream, "asyncio", clock)
    answered = asyncio.Event()

    async def slow() -> AsyncGenerator[GenerationEvent, None]:
        await answered.wait()
        yield STARTED
        yield TextDelta("done", 1)
        yield finished("done", 1)

    async def check() -> None:
        asked = {**ASKED[path], "max_tokens": 5, "stream": True}
        caller = Caller(EchoService(home, slow), path, [json.dumps(asked).encode()])

        async def send(message: Any) -> None:
            if message.get("body"):
                sent_s.append(clock.now_s)
                bodies.append(message["body"])

        app = create_app(EchoService(home, slow), token=None)
        task = asyncio.create_task(app(caller.scope, caller.receive, send))
        while clock.now_s < 120:
            heard = len(bodies)
            await clock.go_on()
            while len(bodies) == heard:
                await asyncio.sleep(0)
        answered.set()
        await task

    run(check)
    gaps = [later - earlier for earlier, later in zip([0.0, *sent_s], sent_s, strict=False)]
    assert max(gaps) <= 15
    assert len(bodies) > 120 / 15
    assert KEEPALIVES[path] in bodies
    assert b"done" in b"".join(bodies).replace(KEEPALIVES[path], b"")
