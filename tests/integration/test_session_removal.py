"""What `session rm` removes is gone from the daemon's memory too, not only from the store."""

from __future__ import annotations

import asyncio
import gc
import types
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import Conflict
from akashic_daemon.protocol import native
from akashic_daemon.service import Service
from fake_service import answer, ask, running_service, user

CANARY = "the safe is opened with 4711"
_OUTSIDE = (types.ModuleType, type, types.FrameType, types.CodeType, types.BuiltinFunctionType)


def texts_held_by(root: object) -> Iterator[str]:
    """Walk everything that an object leads to, closures included, and yield its texts."""
    seen: set[int] = set()
    waiting: list[Any] = [root]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, _OUTSIDE):
            continue
        seen.add(id(found))
        if isinstance(found, str):
            yield found
        elif isinstance(found, types.FunctionType):
            waiting.extend(found.__closure__ or ())  # its globals are the whole program
        else:
            waiting.extend(gc.get_referents(found))


def holds_canary(service: Service) -> bool:
    return any(CANARY in text for text in texts_held_by(service))


async def say(service: Service, session: str, text: str) -> None:
    async with aclosing(service.turn(session, native.TurnRequest(prompt=text, max_tokens=5))) as events:
        async for _ in events:
            pass


def test_a_removed_sessions_text_is_held_nowhere_in_the_service(home: Path) -> None:
    async def run() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            await say(service, "secret", CANARY)
            await answer(service, ask(user(CANARY), session="secret-too"))
            assert holds_canary(service)
            await service.remove_session("secret")
            await service.remove_session("secret-too")
            assert not holds_canary(service)
            await say(service, "other", "hello")  # and prompts are still built

    asyncio.run(run())


def test_texts_are_forgotten_also_when_the_bytes_cannot_be_wiped_from_the_disk_yet(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            await say(service, "secret", CANARY)
            assert service._database is not None

            def refuse() -> None:
                raise Conflict("wiping deleted text: another process reads the file", hint="close it")

            with monkeypatch.context() as patch:
                patch.setattr(service._database, "shrink", refuse)
                with pytest.raises(Conflict):
                    await service.remove_session("secret")
            assert not holds_canary(service)

    asyncio.run(run())


def test_an_answer_whose_session_is_removed_while_it_is_stored_comes_to_its_end(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            explain = service.sessions.add_explanation

            async def late(session: str, explanation: Any) -> None:
                await service.sessions.remove_session(session)
                await explain(session, explanation)

            monkeypatch.setattr(service.sessions, "add_explanation", late)
            done = await answer(service, ask(user("hi"), session="gone", max_tokens=5))
            assert done.completion_tokens == 5
            assert (await service.list_sessions()).sessions == []

    asyncio.run(asyncio.wait_for(run(), 60))
