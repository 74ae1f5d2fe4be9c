"""Who gets the engine when requests for several models wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from akashic_daemon.config import Config, ScheduleSection
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.engine.host import EngineFactory, KnownModel, ModelHost, configured_engines
from akashic_daemon.errors import BadModelFile, ModelError
from akashic_daemon.schedule.counters import Counters
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.trajectory.message import Message, Role

A, B, BROKEN = (KnownModel(name, Path(f"/{name}"), 1) for name in ("a", "b", "broken"))
DEADLINE_S = 60.0


def make(name: str, _path: Path) -> FakeEngine:
    if name == "broken":
        raise ModelError("opening the model broken: it is", hint="mend it")
    return FakeEngine()


def with_host(check: Callable[[ModelHost], Awaitable[None]], factory: EngineFactory = make) -> None:
    async def run() -> None:
        loop = StepLoop(ScheduleSection(), Counters())
        loop.start()
        try:
            await asyncio.wait_for(check(ModelHost(loop, factory)), DEADLINE_S)
        finally:
            await asyncio.to_thread(loop.stop, DEADLINE_S)

    asyncio.run(run())


async def use(host: ModelHost, model: KnownModel, served: list[str]) -> None:
    await host.acquire(model)
    served.append(model.name)
    await host.release()


async def queued(host: ModelHost, *models: KnownModel, served: list[str]) -> list[asyncio.Task[None]]:
    """Let requests wait in this order, behind one that is running."""
    tasks = []
    for count, model in enumerate(models, 1):
        tasks.append(asyncio.create_task(use(host, model, served)))
        while host.waiting_count < count:
            await asyncio.sleep(0)
    return tasks


def test_a_request_for_another_model_is_served_before_those_that_came_after_it() -> None:
    async def check(host: ModelHost) -> None:
        served: list[str] = []
        await host.acquire(A)
        tasks = await queued(host, B, A, A, served=served)
        assert served == []
        await host.release()
        await asyncio.gather(*tasks)
        assert served == ["b", "a", "a"]
        assert host.waiting_count == 0

    with_host(check)


def test_requests_for_the_loaded_model_run_together_when_nobody_waits_for_another() -> None:
    async def check(host: ModelHost) -> None:
        for _ in range(3):
            await host.acquire(A)
        assert host.waiting_count == 0

    with_host(check)


def test_a_waiting_request_that_is_cancelled_lets_the_next_through() -> None:
    async def check(host: ModelHost) -> None:
        served: list[str] = []
        await host.acquire(A)
        wants_b, wants_a = await queued(host, B, A, served=served)
        wants_b.cancel()
        await wants_a
        assert served == ["a"]
        assert host.loaded == "a"

    with_host(check)


def test_a_model_that_cannot_be_loaded_does_not_hold_up_the_queue() -> None:
    async def check(host: ModelHost) -> None:
        served: list[str] = []
        await host.acquire(A)
        broken, wants_b = await queued(host, BROKEN, B, served=served)
        await host.release()
        with pytest.raises(ModelError, match="broken"):
            await broken
        await wants_b
        assert served == ["b"]

    with_host(check)


def test_a_load_that_meets_a_bug_is_told_as_failed_and_nothing_of_it_is_kept() -> None:
    def bug(_name: str, _path: Path) -> FakeEngine:
        raise RuntimeError("CUDA out of memory")

    async def check(host: ModelHost) -> None:
        with pytest.raises(RuntimeError, match="out of memory"):
            await host.acquire(A)
        assert (host.state.state, host.state.detail) == ("failed", "CUDA out of memory")
        assert await host.peek_settled(A) is None
        assert host._loading is None

    with_host(check, bug)


def test_a_model_that_cannot_be_looked_at_is_told_as_failed_and_not_as_loading_for_ever() -> None:
    """As in a folder that others may not enter; a name that is too long fails alike, also for root."""
    hidden = KnownModel("hidden", Path("/" + "x" * 300), 1)

    async def check(host: ModelHost) -> None:
        with pytest.raises(BadModelFile, match="opening the model"):
            await host.acquire(hidden)
        assert host.state.state == "failed"

    with_host(check, configured_engines(Config()))


def test_ids_that_the_loaded_model_has_not_are_tokenized_anew() -> None:
    async def check(host: ModelHost) -> None:
        engine = await host.acquire(A)
        messages = [Message(Role.USER, "hi"), Message(Role.ASSISTANT, "yes"), Message(Role.USER, "on")]
        plain = host.builder.build(messages).tokens
        for strange in (engine.model.vocabulary_size, -1):

            def recall(_parent: object, _text: str, first: int = strange) -> list[int]:
                return [first, *b"yes"]

            assert host.builder.build(messages, recall=recall).tokens == plain
        await host.release()

    with_host(check)


def test_a_load_goes_on_though_who_asked_for_it_leaves_and_the_next_one_finds_it() -> None:
    """A client's timeout that is shorter than a load would else begin it anew each time."""
    loads: list[str] = []
    may_go_on, begun = threading.Event(), threading.Event()

    def slow(name: str, _path: Path) -> FakeEngine:
        loads.append(name)
        begun.set()
        assert may_go_on.wait(DEADLINE_S)
        return FakeEngine()

    async def check(host: ModelHost) -> None:
        for _ in range(3):
            asking = asyncio.create_task(host.acquire(A))
            await asyncio.to_thread(begun.wait, DEADLINE_S)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        last = asyncio.create_task(host.acquire(A))
        while not host.waiting_count:
            await asyncio.sleep(0)
        may_go_on.set()
        await last
        assert loads == ["a"]
        assert host.state.state == "ready"
        await host.release()

    with_host(check, slow)


def test_a_name_that_stands_for_another_file_now_and_a_file_that_changed_are_loaded_anew(tmp_path: Path) -> None:
    """Else a request would be answered by other weights than it asked for."""
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    first.write_bytes(b"GGUF one")
    second.write_bytes(b"GGUF two")
    loads: list[str] = []

    def make_of_file(_name: str, path: Path) -> FakeEngine:
        loads.append(path.read_text())
        return FakeEngine(fingerprint=path.read_text())

    async def ask(host: ModelHost, path: Path) -> str:
        engine = await host.acquire(KnownModel("m", path, 1))
        await host.release()
        return engine.model.fingerprint

    async def check(host: ModelHost) -> None:
        assert [await ask(host, first), await ask(host, first)] == ["GGUF one"] * 2
        assert await ask(host, second) == "GGUF two"
        new = tmp_path / "new"
        new.write_bytes(b"GGUF 2.1")
        new.replace(second)
        assert await ask(host, second) == "GGUF 2.1"
        second.write_bytes(b"GGUF number three")
        assert await ask(host, second) == "GGUF number three"
        second.unlink()  # what was loaded of it is there still
        assert await ask(host, second) == "GGUF number three"
        assert loads == ["GGUF one", "GGUF two", "GGUF 2.1", "GGUF number three"]

    with_host(check, make_of_file)


def test_a_file_that_changes_while_it_is_loaded_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF one")

    def replaced(_name: str, path: Path) -> FakeEngine:
        path.write_bytes(b"GGUF number two")
        return FakeEngine()

    async def check(host: ModelHost) -> None:
        with pytest.raises(BadModelFile, match=r"m\.gguf changed meanwhile"):
            await host.acquire(KnownModel("m", file, 1))
        assert host.loaded is None
        assert host.state.state == "failed"

    with_host(check, replaced)


def test_an_engine_that_was_put_away_because_it_broke_is_loaded_anew() -> None:
    async def check(host: ModelHost) -> None:
        old = await host.acquire(A)
        await host.release()
        await host.on_engine_thread(host._loop._put_away)
        assert await host.acquire(A) is not old
        await host.release()

    with_host(check)
