"""Two things that happen to one session at once: none undoes the other without a word."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.context.script import script
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.engine.host import KnownModel
from akashic_daemon.errors import Conflict, NotFound
from akashic_daemon.protocol import native
from akashic_daemon.protocol.context import AppendRequest, OpsRequest, ScriptEvent, ScriptRequest
from akashic_daemon.service import Service
from fake_service import NEVER, answer, ask, assistant, running_service, user
from long_steps import GatedEngine

DEADLINE_S = 60.0
SECRET = "the safe is opened with 4711"
TOLD = (user("a"), assistant("b"), user("c"))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 2 * DEADLINE_S))


async def say(service: Service, session: str, text: str, **options: Any) -> None:
    request = native.TurnRequest(prompt=text, max_tokens=5, memory=False, **options)
    async with aclosing(service.turn(session, request)) as events:
        async for _ in events:
            pass


async def texts(service: Service, session: str) -> list[str]:
    return [m.content for m in await service.export_session(session)]


async def drained(events: AsyncGenerator[ScriptEvent, None]) -> None:
    async for _ in events:
        pass


async def begun(engine: GatedEngine) -> None:
    assert await asyncio.to_thread(engine.begun.acquire, timeout=DEADLINE_S)


@pytest.mark.parametrize("how", ["turn", "request"])
def test_a_session_that_is_removed_while_it_is_answered_stays_removed(home: Path, how: str) -> None:
    held = GatedEngine(end_every=NEVER)

    async def work() -> None:
        async with running_service(home, lambda _n, _p: held, flags={"cache.ram_bytes": "1MiB"}) as service:
            await service.sessions.book.record("s", TOLD, assistant("d"), [], origin="api", since_removals=0)
            asked = ask(*TOLD, assistant("d"), user(SECRET), session="s")
            answering = asyncio.create_task(
                say(service, "s", SECRET) if how == "turn" else answer(service, asked)
            )  # fmt: skip
            await begun(held)
            removing = asyncio.create_task(service.remove_session("s"))
            while (await service.list_sessions()).sessions:
                await asyncio.sleep(0)
            held.open()
            await asyncio.gather(answering, removing)
            assert (await service.list_sessions()).sessions == []
            assert service.generation.traces.all_of("s") == []
            assert (await service.context.cache_tree(10)).roots == []
            await say(service, "s", "hello")  # and a new one of that name is a session like any other
            assert (await texts(service, "s"))[0] == "hello"

    run(work())


def test_a_response_whose_session_was_removed_meanwhile_is_not_stored(home: Path) -> None:
    async def work() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            body = {"id": "resp_1", "output": []}
            await service.responses.keep(body, items=[SECRET], previous=None, session="gone")
            with pytest.raises(NotFound):
                await service.responses.get("resp_1")

    run(work())


def test_an_answer_is_kept_though_its_client_leaves_while_it_is_stored(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine(end_every=NEVER)) as service:
            stored = asyncio.Event()
            gate, record = threading.Event(), service.sessions.book.record

            async def late(*of: Any, **how: Any) -> bool:
                busy = asyncio.create_task(service._thread.run(lambda: gate.wait(DEADLINE_S)))
                await asyncio.sleep(0)
                stored.set()
                try:
                    return await record(*of, **how)
                finally:
                    await busy

            monkeypatch.setattr(service.sessions.book, "record", late)
            asking = asyncio.create_task(answer(service, ask(user("hello"), session="s")))
            await stored.wait()
            await asyncio.sleep(0)  # what is stored waits behind what keeps the store busy
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            gate.set()
            assert await service._host.wait_unused(DEADLINE_S)
            assert len(await texts(service, "s")) == 2

    run(work())


def test_a_turn_that_never_began_takes_nothing_of_another_back(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine(end_every=NEVER)) as service:
            waiting, may, resolve = asyncio.Event(), asyncio.Event(), service.models.resolve

            async def slow(name: str | None) -> KnownModel:
                if name == "nowhere":
                    waiting.set()
                    await may.wait()
                return await resolve(name)

            monkeypatch.setattr(service.models, "resolve", slow)
            failing = asyncio.create_task(say(service, "s", "one", model="nowhere"))
            await waiting.wait()
            await service.sessions.begin_turn("s", "two", "")
            may.set()
            with pytest.raises(NotFound, match="nowhere"):
                await failing
            assert await texts(service, "s") == ["one", "two"]
            with pytest.raises(NotFound):
                await say(service, "t", "three", model="nowhere")
            assert await texts(service, "t") == []

    run(work())


def test_operations_on_a_session_whose_script_runs_are_not_lost(home: Path) -> None:
    async def work() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine(end_every=NEVER)) as service:
            await service.sessions.book.record("s", TOLD, assistant("d"), [], origin="api", since_removals=0)
            events = script(service.context, "s", ScriptRequest(script='append user "e"\nappend user "f"'))
            await anext(events)
            await service.context.edit("s", OpsRequest(ops=[{"op": "drop", "messages": [1]}]))
            with pytest.raises(Conflict, match="changed meanwhile"):
                await drained(events)
            program = await service.sessions.program("s")
            assert program is not None
            assert len(program.ops) == 1
            assert await texts(service, "s") == ["a", "b", "c", "d"]

    run(work())


def test_a_branch_whose_name_was_taken_while_its_script_ran_leaves_every_session_alone(home: Path) -> None:
    async def work() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine(end_every=NEVER)) as service:
            await service.sessions.book.record("s", TOLD, assistant("d"), [], origin="api", since_removals=0)
            text = 'append user "e"\nbranch other\nappend user "f"'
            events = script(service.context, "s", ScriptRequest(script=text))
            await anext(events)
            await anext(events)
            await service.sessions.begin_turn("other", "mine", "")
            with pytest.raises(Conflict, match="made meanwhile"):
                await drained(events)
            assert await texts(service, "s") == ["a", "b", "c", "d"]
            assert await texts(service, "other") == ["mine"]

    run(work())


def test_a_bug_while_a_transcript_is_read_ends_its_import(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bug(Exception):
        pass

    def broken(*_of: object, **_how: object) -> None:
        raise Bug

    async def work() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            file = tmp_path / "told.jsonl"
            file.write_text(json.dumps({"role": "user", "content": "hi"}) + "\n")
            monkeypatch.setattr(service.sessions._store, "append", broken)
            with pytest.raises(Bug):
                async for _ in service.import_transcript(file, format=None, name="x"):
                    pass

    run(work())


def test_a_turn_waits_for_the_one_before_it_and_goes_on_from_its_answer(home: Path) -> None:
    held = GatedEngine(end_every=NEVER)

    async def work() -> None:
        async with running_service(home, lambda _n, _p: held) as service:
            first = asyncio.create_task(say(service, "s", "one"))
            await begun(held)
            second = asyncio.create_task(say(service, "s", "two"))
            await asyncio.wait({second}, timeout=0)
            held.open()
            await asyncio.gather(first, second)
            told = await texts(service, "s")
            assert [told[0], told[2]] == ["one", "two"]
            assert [len(told), len(told[1]), len(told[3])] == [4, 5, 5]

    run(work())


def test_a_turn_whose_client_leaves_while_it_waits_keeps_nobody_waiting(home: Path) -> None:
    held = GatedEngine(end_every=NEVER)

    async def work() -> None:
        async with running_service(home, lambda _n, _p: held) as service:
            first, second, third = (asyncio.create_task(say(service, "s", t)) for t in ("one", "two", "three"))
            await begun(held)
            second.cancel()
            held.open()
            with pytest.raises(asyncio.CancelledError):
                await second
            await asyncio.gather(first, third)
            assert (await texts(service, "s"))[::2] == ["one", "three"]
            assert service.sessions.turns._locks == {}

    run(work())


def test_a_session_that_is_answered_takes_no_message_and_no_scripts_end_and_says_so(home: Path) -> None:
    held = GatedEngine(end_every=NEVER)

    async def work() -> None:
        async with running_service(home, lambda _n, _p: held) as service:
            answering = asyncio.create_task(say(service, "s", "one"))
            await begun(held)
            message = AppendRequest(role="user", content="meanwhile")
            with pytest.raises(Conflict, match="is being answered"):
                await service.context.append("s", message)
            events = script(service.context, "s", ScriptRequest(script='append user "e"'))
            await anext(events)
            ending = asyncio.create_task(drained(events))
            while len((await service.list_sessions()).sessions) > 1:
                await asyncio.sleep(0)  # it gives its scratch branch up; the KV of that waits for the engine
            held.open()
            await answering
            with pytest.raises(Conflict, match="is being answered"):
                await ending
            await service.context.append("s", message)
            told = await texts(service, "s")
            assert [told[0], told[2], len(told)] == ["one", "meanwhile", 3]

    run(work())


def test_two_scripts_that_make_the_same_sessions_in_other_orders_do_not_wait_for_each_other(home: Path) -> None:
    async def work() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine(end_every=NEVER)) as service:
            turns = service.sessions.turns
            with_a, with_b = AsyncExitStack(), AsyncExitStack()
            await with_a.enter_async_context(turns.between("a", "testing"))
            await with_b.enter_async_context(turns.between("b", "testing"))
            playing = [
                asyncio.create_task(
                    drained(script(service.context, one, ScriptRequest(script=f'append user "e"\nbranch {other}')))
                )
                for one, other in (("a", "b"), ("b", "a"))
            ]
            while sum(turns._wanted.values()) < 4:  # both scripts wait, beside us
                assert not any(task.done() for task in playing)
                await asyncio.sleep(0.001)
            await with_a.aclose()
            await with_b.aclose()
            done, waiting = await asyncio.wait(playing, timeout=DEADLINE_S)
            assert not waiting
            (error,) = [task.exception() for task in done if task.exception() is not None]
            assert isinstance(error, Conflict)
            assert await texts(service, "a") == await texts(service, "b") == ["e"]

    run(work())
