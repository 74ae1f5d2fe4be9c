"""Files of warm sessions whose parts are whole and say what can't be: the session goes on, and what was left out is told."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.api.border import dump
from akashic_daemon.protocol.archive import Kind, Part
from akashic_daemon.protocol.context import AppendRequest
from akashic_daemon.service import Service
from akashic_daemon.sessions.traces import Known
from akashic_daemon.store.traces import pack, unpack
from fake_service import answer, ask, user
from tiers_service import on_service
from warm_files import file_of, imported, joined, parts_of, turn

HALF = "a\ud800b"
UNFIT = "operations that don't fit the messages that came"


def changed(data: bytes, kind: Kind, change: Callable[[Part], Part]) -> bytes:
    """Return a file whose parts of a kind are others."""
    return joined([change(p) if p.kind == kind else p for p in parts_of(data)])


def saying(**words: Any) -> Callable[[Part], Part]:
    """Return a change of what a part's head says."""
    return lambda part: Part(part.kind, {**part.head, **words}, part.body, 0)


def with_message(index: int, **words: Any) -> Callable[[Part], Part]:
    """Return a change of one message."""

    def change(part: Part) -> Part:
        messages = [json.loads(line) for line in part.body.splitlines()]
        messages[index] |= words
        return Part(part.kind, part.head, "".join(json.dumps(m) + "\n" for m in messages).encode(), 0)

    return change


def with_trace(lie: Callable[[Known], Known]) -> Callable[[Part], Part]:
    """Return a change of the trace."""

    def change(part: Part) -> Part:
        known = unpack("one", part.head["model"], part.head["fingerprint"], part.body)
        return Part(part.kind, part.head, pack(lie(known)), 0)

    return change


def negative_owners(known: Known) -> Known:
    entries = tuple(replace(entry, owner=-7) for entry in known.trace.entries)
    return replace(known, trace=replace(known.trace, entries=entries))


def negative_tokens(known: Known) -> Known:
    path = replace(known.trace.path, tokens=array("i", [-5]) + known.trace.path.tokens[1:])
    return replace(known, trace=replace(known.trace, path=path))


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ({"op": "drop", "messages": [1], "at": 400}, UNFIT),
        ({"op": "drop", "messages": [100], "at": 4}, UNFIT),
        ({"op": "drop", "messages": [1, 1], "at": 4}, UNFIT),
        ({"op": "drop", "messages": [1]}, UNFIT),
        ({"op": "drop", "tokens": [[9, 3]], "at": 4}, UNFIT),
        ({"op": "replace", "message": 1, "tokens": [1 << 40], "at": 4}, UNFIT),
        ({"op": "replace", "message": 1, "tokens": [-5], "at": 4}, UNFIT),
        ({"op": "replace", "message": 1, "tokens": [65], "at": "x"}, "damaged: policy and operations"),
        ({"op": "drop", "select": "tool", "at": 4}, UNFIT),
    ],
)
def test_an_operation_that_never_was_is_left_out_and_the_session_answers(
    home: Path, other_home: Path, op: dict[str, Any], reason: str
) -> None:
    good = {"op": "repos", "at": 4}
    data = changed(file_of(home), Kind.PROGRAM, saying(ops=[op, good]))

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data, name="one")
        assert {p.reason: p.count for p in done.problems} == {reason: 1}
        program = await service.sessions.program("one")
        assert program is not None
        assert len(program.ops) == (reason == UNFIT)
        await turn(service, "one", "and now?")
        await service.context.show("one")

    on_service(other_home, there)


def test_operations_on_messages_that_a_damaged_file_lost_are_left_out(home: Path, other_home: Path) -> None:
    data = changed(file_of(home), Kind.PROGRAM, saying(ops=[{"op": "drop", "messages": [1], "at": 4}]))

    def cut(part: Part) -> Part:
        return Part(part.kind, part.head, b"".join(part.body.splitlines(keepends=True)[:2]), 0)

    data = changed(data, Kind.MESSAGES, cut)

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data, name="one")
        assert [p.count for p in done.problems if p.reason == UNFIT] == [1]
        await turn(service, "one", "and now?")

    on_service(other_home, there)


@pytest.mark.parametrize(
    "words",
    [
        {"content": HALF},
        {"tool_calls": [{"id": HALF, "name": HALF, "arguments": HALF}]},
        {"source": HALF, "thinking": HALF},
        {"event_time_s": float("nan")},
        {"event_time_s": 10**400},
        {"event_time_s": True},
    ],
)
def test_a_message_is_taken_with_texts_and_times_that_json_can_say(
    home: Path, other_home: Path, words: dict[str, Any]
) -> None:
    data = changed(file_of(home), Kind.MESSAGES, with_message(1, **words))

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data, name="one")
        assert done.messages == 4
        await turn(service, "one", "and now?")
        for message in await service.export_session("one"):
            json.dumps(message.to_json(), allow_nan=False, ensure_ascii=False).encode()
            assert not isinstance(message.event_time_s, bool)

    on_service(other_home, there)


@pytest.mark.parametrize(
    "lie", [with_trace(negative_owners), with_trace(negative_tokens), saying(model=HALF), saying(fingerprint=HALF)]
)
def test_a_trace_that_cannot_be_is_left_out_and_an_edited_history_is_answered(
    home: Path, other_home: Path, lie: Callable[[Part], Part]
) -> None:
    data = changed(file_of(home), Kind.TRACE, lie)

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data, name="one")
        assert {p.reason: p.count for p in done.problems} == {"damaged: what was computed last": 1}
        told = await service.export_session("one")
        edited = [*told[:2], replace(told[2], content=told[2].content + "!"), told[3], user("and now?")]
        await answer(service, ask(*edited, session="one", edit_reuse="drop"))
        await service._thread.settled()

    on_service(other_home, there)


def test_half_a_surrogate_pair_that_is_appended_spoils_no_later_turn(home: Path) -> None:
    async def here(service: Service) -> None:
        await service.context.append("s", AppendRequest(role="user", content=HALF))
        assert (await service.export_session("s"))[0].content == "a\ufffdb"
        store = service.sessions._store
        await service._thread.run(lambda: store.append("s", [user(HALF)]))  # as earlier versions did
        await turn(service, "s", "and now?")
        assert b"\xed" not in dump((await service.context.explanation("s", None)).model_dump())

    on_service(home, here)
