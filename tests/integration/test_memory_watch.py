"""Logs that are followed into memory: each line once, over rotation, cutting, partial lines and restarts."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import json
import lzma
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from watchdog.observers.api import EventEmitter

from akashic_daemon.errors import BadRequest, Conflict
from akashic_daemon.memory.watch import Follower, Step
from akashic_daemon.memory_service import watch as watch_module
from akashic_daemon.memory_service.service import MemoryService
from akashic_daemon.memory_service.watch import MemoryWatch, Watched
from akashic_daemon.paths import find_paths
from akashic_daemon.store.memory.rows import Turn
from awaited import awaited
from hashed_words import HashedWords

LONG_S = 1e9
"""Nothing counts as quiet."""


async def hashed() -> HashedWords:
    return HashedWords()


@asynccontextmanager
async def memory(home: Path) -> AsyncIterator[MemoryService]:
    service = MemoryService(find_paths({"AKASHIC_HOME": str(home)}), hashed)
    try:
        yield service
    finally:
        await service.close()


def beside(logs: Path) -> Path:
    """Return a home that isn't watched with the logs: what the service makes there would be events."""
    return logs.with_name(f"{logs.name}-home")


def user(number: int, text: str = "") -> bytes:
    line = {
        "type": "user",
        "uuid": f"u{number}",
        "sessionId": "s",
        "timestamp": "2026-01-05T10:00:00Z",
        "message": {"role": "user", "content": text or f"the {number}th wish"},
    }
    return json.dumps(line).encode() + b"\n"


def answer(number: int, *, part: str, text: str) -> bytes:
    content = [{"type": "text", "text": text}]
    line = {
        "type": "assistant",
        "uuid": f"a{number}{part}",
        "sessionId": "s",
        "message": {"id": f"m{number}", "role": "assistant", "content": content},
    }
    return json.dumps(line).encode() + b"\n"


def append(path: Path, *lines: bytes) -> None:
    with path.open("ab") as file:
        file.write(b"".join(lines))


async def read_all(service: MemoryService, *paths: Path, quiet_s: float = 0.0) -> list[Watched]:
    watching = MemoryWatch(service).watch([str(p) for p in paths], namespace="user", once=True, quiet_s=quiet_s)
    return [event async for event in watching]


async def turns(service: MemoryService) -> list[Turn]:
    return await service._run(lambda opened: opened.store.turns_of("user") if opened.store.namespaces() else [])


async def texts(service: MemoryService) -> list[str]:
    return [turn.text for turn in await turns(service)]


async def origins(service: MemoryService) -> list[tuple[str, str]]:
    """Every place where a turn was said, with its text."""
    found = await turns(service)
    places = await service._run(lambda opened: {turn.id: opened.store.sources_of(turn.id) for turn in found})
    return [(turn.text, origin.reference) for turn in found for origin in places[turn.id]]


def wishes(numbers: Sequence[int]) -> list[str]:
    return [f"the {number}th wish" for number in numbers]


@awaited
async def test_what_is_there_is_read_and_what_comes_later_is_read_once(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "s.jsonl"
    log.parent.mkdir()
    append(log, user(1), user(2))
    async with memory(beside(tmp_path)) as service:
        await read_all(service, log.parent)
        append(log, user(3))
        events = await read_all(service, log.parent)
        assert await texts(service) == wishes([1, 2, 3])
        assert sum(event.new for event in events) == 1
        assert sum(event.known for event in events) == 0


@awaited
async def test_a_log_is_followed_while_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    append(log, user(0))
    async with memory(beside(tmp_path)) as service:
        new = 0
        async with aclosing(MemoryWatch(service).watch([str(tmp_path)], namespace="user")) as events:
            async for event in events:
                new += event.new
                if event.kind == "caught_up":
                    if new == 5:
                        break
                    append(log, user(new))
        assert await texts(service) == wishes(range(5))


@awaited
async def test_a_log_that_cannot_be_read_for_a_while_is_told_of_once_and_read_when_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "s.jsonl", user(1))
    refused = [PermissionError(13, "Permission denied")] * 3
    look = Follower.look

    def looking(follower: Follower, *given: Any, **options: Any) -> Step | None:
        if refused:
            raise refused.pop()
        return look(follower, *given, **options)

    monkeypatch.setattr(Follower, "look", looking)
    monkeypatch.setattr(watch_module, "_LOOK_S", 0.01)
    seen: list[str] = []
    async with memory(beside(tmp_path)) as service:
        async with aclosing(MemoryWatch(service).watch([str(tmp_path)], namespace="user")) as events:
            async for event in events:
                seen.append(event.kind)
                if event.kind == "read":
                    break
        assert await texts(service) == wishes([1])
    assert seen.count("problem") == 1


@awaited
async def test_folders_that_the_system_does_not_tell_of_are_looked_at_and_no_watch_of_others_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [tmp_path / "one", tmp_path / "two"]
    for number, root in enumerate(roots):
        root.mkdir()
        append(root / "s.jsonl", user(number))
    begun: list[EventEmitter] = []
    start = EventEmitter.start

    def starting(emitter: EventEmitter) -> None:
        if begun:
            raise OSError(28, "inotify watch limit reached")
        begun.append(emitter)
        start(emitter)

    monkeypatch.setattr(EventEmitter, "start", starting)
    async with memory(beside(tmp_path)) as service:
        events = await read_all(service, *roots)
        assert "inotify watch limit reached" in events[0].reason
        assert sorted(await texts(service)) == wishes([0, 1])
    assert [emitter.is_alive() for emitter in begun] == [False]


@awaited
async def test_a_line_without_its_end_waits_for_it(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    whole = user(2)
    append(log, user(1), whole[:30])
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path)
        assert await texts(service) == wishes([1])
        append(log, whole[30:])
        await read_all(service, tmp_path)
        assert await texts(service) == wishes([1, 2])


@awaited
async def test_a_last_line_that_is_whole_but_for_its_end_is_read_when_the_log_is_quiet(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    append(log, user(1), user(2).rstrip())
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path, quiet_s=LONG_S)
        assert await texts(service) == wishes([1])
        await read_all(service, tmp_path)
        append(log, b"\n", user(3))
        await read_all(service, tmp_path)
        assert await texts(service) == wishes([1, 2, 3])


@awaited
async def test_an_answer_on_several_lines_is_one_turn_also_when_a_restart_comes_between(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    append(log, user(1), answer(1, part="a", text="Let me look."))
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path, quiet_s=LONG_S)
        assert await texts(service) == wishes([1])
    append(log, answer(1, part="b", text="It is blue."), user(2))
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path, quiet_s=LONG_S)
        one, both, two = await texts(service)
        assert [one, two] == wishes([1, 2])
        assert "Let me look." in both
        assert "It is blue." in both


@awaited
async def test_the_last_answer_is_remembered_when_the_log_is_quiet_and_not_again_when_it_goes_on(
    tmp_path: Path,
) -> None:
    log = tmp_path / "s.jsonl"
    append(log, user(1), answer(1, part="a", text="Let me look."))
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path)
        assert await texts(service) == [*wishes([1]), "Let me look."]
        append(log, answer(1, part="b", text="It is blue."), user(2))
        await read_all(service, tmp_path)
        assert await texts(service) == [*wishes([1]), "Let me look.", "It is blue.", *wishes([2])]


@awaited
async def test_what_was_being_ended_when_the_daemon_was_killed_is_ended_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "s.jsonl"
    append(log, user(1), answer(1, part="a", text="Let me look."))
    async with memory(beside(tmp_path)) as service:
        keep, kept = service.put_watch_mark, list[int | None]()

        async def dies_after_the_turns(namespace: str, mark: object) -> None:
            settle = getattr(mark, "settle_bytes", None)
            if settle is None and kept and kept[-1] is not None:
                raise BadRequest("killed")
            kept.append(settle)
            await keep(namespace, mark)  # type: ignore[arg-type]

        monkeypatch.setattr(service, "put_watch_mark", dies_after_the_turns)
        with pytest.raises(BadRequest):
            await read_all(service, tmp_path)
        assert await texts(service) == [*wishes([1]), "Let me look."]
    append(log, answer(1, part="b", text="It is blue."), user(2))
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path)
        assert await texts(service) == [*wishes([1]), "Let me look.", "It is blue.", *wishes([2])]


@awaited
async def test_a_renamed_log_is_read_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    append(log, user(1))
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path)
        append(log, user(2))
        log.rename(tmp_path / "s.jsonl.1")
        append(log, user(3))
        await read_all(service, tmp_path)
        append(tmp_path / "s.jsonl.1", user(4))
        events = await read_all(service, tmp_path)
        assert await texts(service) == wishes([1, 2, 3, 4])
        assert sum(event.known for event in events) == 0


@awaited
async def test_a_log_that_was_begun_and_renamed_while_nobody_looked_is_read(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    append(log, user(1))
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path)
    for number in (2, 3):
        log.rename(tmp_path / f"s.jsonl.{number - 1}")
        append(log, user(number))
    async with memory(beside(tmp_path)) as service:
        await read_all(service, log)
        assert await texts(service) == wishes([1, 2, 3])


@awaited
async def test_a_log_that_was_cut_is_read_from_its_start_and_that_is_told(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    append(log, user(1), user(2))
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path)
        os.truncate(log, 0)
        append(log, user(3), user(4), user(5), user(6))
        events = await read_all(service, tmp_path)
        assert await texts(service) == wishes([1, 2, 3, 4, 5, 6])
        assert any("cut" in event.reason for event in events if event.kind == "problem")


@awaited
async def test_broken_lines_are_told_and_what_stands_round_them_is_read(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    append(log, user(1), b'{"type": "user", \xff\n', b"\r\n", user(2))
    async with memory(beside(tmp_path)) as service:
        events = await read_all(service, tmp_path)
        assert await texts(service) == wishes([1, 2])
        assert [event.line for event in events if event.kind == "problem"] == [2]


@awaited
async def test_the_same_words_on_two_lines_are_one_turn_that_was_said_twice(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    append(log, user(1, "yes"), user(2, "yes"))
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path)
        assert [reference for _, reference in await origins(service)] == ["claude-code:u1", "claude-code:u2"]
        assert await texts(service) == ["yes"]


@awaited
async def test_plain_logs_are_read_line_by_line_when_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "build.log").write_text("compiling\nlinking failed: no such symbol\n")
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path)
        assert await texts(service) == []
        await read_all(service, tmp_path / "build.log")
        assert await texts(service) == ["compiling", "linking failed: no such symbol"]


@awaited
async def test_a_folder_is_watched_into_a_namespace_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    async with memory(beside(tmp_path)) as service:
        watch = MemoryWatch(service)
        async with aclosing(watch.watch([str(tmp_path)], namespace="user")) as events:
            await anext(events)
            with pytest.raises(Conflict):
                await anext(watch.watch([str(tmp_path / "a")], namespace="user"))
            await anext(watch.watch([str(tmp_path / "a")], namespace="project:other", once=True))
        await anext(watch.watch([str(tmp_path)], namespace="user", once=True))


@awaited
async def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    async with memory(beside(tmp_path)) as service:
        for path in (str(tmp_path / "none"), "logs", "~nobody-of-that-name/logs"):
            with pytest.raises(BadRequest):
                await anext(MemoryWatch(service).watch([path], namespace="user"))


@pytest.mark.parametrize(("opener", "suffix"), [(gzip.open, ".gz"), (bz2.open, ".bz2"), (lzma.open, ".xz")])
@awaited
async def test_a_log_that_was_compressed_before_it_was_read_is_told_of_and_read_when_it_is_unpacked(
    tmp_path: Path, opener: Any, suffix: str
) -> None:
    log = tmp_path / "s.jsonl"
    append(log, *[user(n) for n in range(40)])
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path)
        late = [user(n) for n in range(40, 45)]
        append(log, *late)
        packed = tmp_path / f"s.jsonl.1{suffix}"
        with opener(packed, "wb") as file:
            file.write(log.read_bytes())
        text = log.read_bytes()
        log.unlink()
        (tmp_path / f"s.jsonl.2{suffix}").write_bytes(b"another log, and broken")
        append(log, user(100))
        (told,) = [event for event in await read_all(service, tmp_path) if event.kind == "problem"]
        assert told.path == str(log)
        assert f"compressed to {packed.name} before its last {sum(map(len, late))} bytes were read" in told.reason
        assert [event for event in await read_all(service, tmp_path) if event.kind == "problem"] == []
        (tmp_path / "s.jsonl.1").write_bytes(text)
        await read_all(service, tmp_path)
        found = await turns(service)
        assert len({one.text for one in found}) == len(found) == 46


@awaited
async def test_a_log_that_was_read_to_its_end_before_it_was_compressed_needs_no_word(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    append(log, *[user(n) for n in range(40)])
    async with memory(beside(tmp_path)) as service:
        await read_all(service, tmp_path)
        with gzip.open(tmp_path / "s.jsonl.gz", "wb") as file:
            file.write(log.read_bytes())
        log.unlink()
        assert [event for event in await read_all(service, tmp_path) if event.kind == "problem"] == []


@awaited
async def test_upkeep_waits_while_logs_are_read(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    append(log, *[user(n, f"wish {n}: " + "much of it " * 200) for n in range(200)])
    async with memory(beside(tmp_path)) as service:
        async with aclosing(MemoryWatch(service).watch([str(tmp_path)], namespace="user")) as events:
            async for event in events:
                if event.kind == "read":
                    assert service.worker.reconciled == 0
                if event.kind == "caught_up":
                    break
        while not service.worker.reconciled:
            await asyncio.sleep(0.01)
