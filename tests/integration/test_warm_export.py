"""A session with its KV as one file: out of one home, into another, on services with the fake engine."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import Conflict, NotFound, TranscriptError
from akashic_daemon.protocol import archive
from akashic_daemon.protocol.archive import Kind, Part
from akashic_daemon.protocol.context import OpsRequest, PolicyRequest
from akashic_daemon.protocol.native import Reuse, TurnRequest
from akashic_daemon.service import Service
from fake_service import NEVER, running_service
from tiers_service import LONG, TIERS, catalogue, empty_engine, empty_ram, on_service, settled, stored_bytes
from warm_files import exported, file_of, imported, joined, parts_of, turn


def test_the_next_turn_in_another_home_computes_no_more_than_its_own_tokens_and_a_block(
    home: Path, other_home: Path
) -> None:
    data = file_of(home)
    stayed: list[Reuse] = []
    moved: list[Reuse] = []

    async def here(service: Service) -> None:
        stayed.append(await turn(service, "one", "and now?"))

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data)
        assert done.format == archive.FORMAT
        assert [(s.session, s.messages, s.new_messages) for s in done.sessions] == [("one", 4, 4)]
        assert done.problems == []
        assert done.kv is not None
        assert done.kv.blocks > 8
        assert done.kv.tokens > 1000
        moved.append(await turn(service, "one", "and now?"))

    on_service(home, here)
    on_service(other_home, there)
    assert moved[0].computed_tokens <= stayed[0].computed_tokens + 128
    assert moved[0].reused_tokens > 1000
    assert moved[0].reused_by_tier["ssd"] > 1000
    assert moved[0].miss is None or moved[0].miss.cause != "model_changed"


async def said(service: Service, session: str, text: str) -> tuple[str, Reuse]:
    """Run a turn; return the answer and what it reused."""
    async with aclosing(service.turn(session, TurnRequest(prompt=text, max_tokens=20, temperature=0.0))) as events:
        async for event in events:
            if event.kind == "done":
                assert event.reuse is not None
                assert event.text is not None
                return event.text, event.reuse
    raise AssertionError("the turn ended without an answer")


@pytest.mark.parametrize(
    "ops",
    [
        [{"op": "drop", "messages": [0]}],
        [{"op": "drop", "messages": [0]}, {"op": "repos"}],
        [{"op": "replace", "message": 0, "content": "in short"}],
        [{"op": "drop", "tokens": [[20, 300]]}],
    ],
)
def test_a_sessions_program_moves_with_it_and_its_answers_stay_the_same(
    home: Path, other_home: Path, ops: list[dict[str, Any]]
) -> None:
    files: list[bytes] = []
    answers: list[tuple[str, Reuse]] = []
    programs: list[Any] = []

    async def here(service: Service) -> None:
        for _ in range(2):
            await turn(service, "one")
        await service.context.edit("one", OpsRequest(ops=ops))
        await service.context.set_policy("one", PolicyRequest(policy="think-drop"))
        await turn(service, "one", "shorter now")
        programs.append(await service.sessions.program("one"))
        files.append(await exported(service, "one"))
        answers.append(await said(service, "one", "and now?"))

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", files[0])
        assert done.problems == []
        programs.append(await service.sessions.program("one"))
        answers.append(await said(service, "one", "and now?"))

    on_service(home, here)
    on_service(other_home, there)
    assert programs[1] == programs[0]
    assert answers[1][0] == answers[0][0]
    assert answers[1][1].computed_tokens <= answers[0][1].computed_tokens + 128
    assert answers[1][1].dropped_tokens == answers[0][1].dropped_tokens


def test_a_policy_that_is_not_known_here_is_left_out_and_told(home: Path, other_home: Path) -> None:
    parts = parts_of(file_of(home))
    data = joined([replace(p, head={**p.head, "policy": "mine"}) if p.kind == Kind.PROGRAM else p for p in parts])

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data)
        assert [p.reason for p in done.problems] == ["its policy 'mine' isn't known here"]
        program = await service.sessions.program("one")
        assert program is not None
        assert program.policy is None

    on_service(other_home, there)


def test_sampled_tokens_move_also_where_the_text_would_be_read_as_others(home: Path, other_home: Path) -> None:
    data = file_of(home, turns=1)
    ids: list[Any] = []

    async def there(service: Service) -> None:
        await imported(service, other_home / "warm", data)
        stored = await service._thread.run(lambda: service._homes.store.messages("one"))
        ids.append([m.token_ids for m in stored])

    async def here(service: Service) -> None:
        stored = await service._thread.run(lambda: service._homes.store.messages("one"))
        ids.append([m.token_ids for m in stored])

    on_service(other_home, there)
    on_service(home, here)
    assert ids[0] == ids[1]
    assert ids[0][1]


def test_another_models_home_keeps_the_trace_to_explain_the_miss_by(home: Path, other_home: Path) -> None:
    data = file_of(home)

    async def there() -> None:
        def engine(_name: str, _path: Path) -> FakeEngine:
            return FakeEngine(kv_cells=8192, window_tokens=4096, end_every=NEVER, fingerprint="other")

        async with running_service(other_home, engine, flags=TIERS) as service:
            done = await imported(service, other_home / "warm", data)
            assert done.kv is not None
            assert done.kv.blocks == 0
            assert "computed otherwise" in done.kv.detail
            reuse = await turn(service, "one", "and now?")
            assert reuse.miss is not None
            assert reuse.miss.cause == "model_changed"

    asyncio.run(there())


def test_an_import_whose_client_leaves_pins_nothing(home: Path, other_home: Path) -> None:
    data = file_of(home)
    (other_home / "warm").write_bytes(data)

    async def there(service: Service) -> None:
        events = service.import_transcript(other_home / "warm", format=None, name=None, label="warm")
        async for event in events:
            assert event.kind == "progress"
            if catalogue(service):
                break
        assert any(b.pins for b in catalogue(service))
        await events.aclose()
        await settled(service)
        assert all(b.pins == 0 for b in catalogue(service))
        assert await service._host.wait_unused(5.0)
        assert (await turn(service, "one", "and now?")).reused_tokens > 1000

    on_service(other_home, there, flags={"cache.ram_bytes": "1MiB", "cache.ssd_bytes": 0})


def test_what_is_imported_is_still_warm_after_a_restart(home: Path, other_home: Path) -> None:
    data = file_of(home)

    async def first(service: Service) -> None:
        await imported(service, other_home / "warm", data)

    async def then(service: Service) -> None:
        assert (await turn(service, "one", "and now?")).reused_by_tier["ssd"] > 1000

    on_service(other_home, first)
    on_service(other_home, then)


@pytest.mark.parametrize("where", ["ram", "ssd", "engine", "off"])
def test_kv_is_taken_from_wherever_it_stands(home: Path, other_home: Path, where: str) -> None:
    async def before(service: Service) -> None:
        if where == "engine":
            await settled(service)
            mover = service.tiers.mover
            assert mover.catalogue is not None
            await empty_ram(service)
            assert not any(b.has_copy for b in catalogue(service))
        if where in ("ram", "ssd"):
            await settled(service)
            await empty_engine(service)
        if where == "ssd":
            await empty_ram(service)

    flags: dict[str, dict[str, Any]] = {
        "ram": TIERS,
        "ssd": TIERS,
        "engine": {"cache.ram_bytes": "1MiB", "cache.ssd_bytes": 0},
        "off": {"cache.ram_bytes": 0, "cache.ssd_bytes": 0},
    }
    data = file_of(home, flags=flags[where], before=before)
    end = parts_of(data)[-1]
    assert end.kind == Kind.END
    assert end.head["tokens"] > 1000
    assert end.head["notes"] == []

    async def there(service: Service) -> None:
        await imported(service, other_home / "warm", data)
        assert (await turn(service, "one", "and now?")).reused_tokens > 1000

    on_service(other_home, there)


def test_a_model_set_up_otherwise_takes_the_session_without_kv_and_says_what_differs(
    home: Path, other_home: Path
) -> None:
    data = file_of(home)
    parts = parts_of(data)
    changed = {**parts[0].head, "fingerprint": "fp1:other", "parts": {**parts[0].head["parts"], "kv_type": "q8_0"}}
    data = joined([Part(parts[0].kind, changed, b"", 0), *parts[1:]])

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data)
        assert done.kv is not None
        assert "KV type changed" in done.kv.detail
        assert done.kv.blocks == 0
        assert done.kv.left_out_blocks > 8
        assert [m.content for m in await service.export_session("one")].count(LONG) == 2
        assert catalogue(service) == []
        assert (await turn(service, "one", "and now?")).computed_tokens > 1000

    on_service(other_home, there)


def test_the_same_file_again_adds_nothing(home: Path, other_home: Path) -> None:
    data = file_of(home)

    async def there(service: Service) -> None:
        first = await imported(service, other_home / "warm", data)
        again = await imported(service, other_home / "warm", data)
        assert [s.session for s in again.sessions] == ["one"]
        assert again.sessions[0].new_messages == 0
        assert first.kv is not None
        assert again.kv is not None
        assert (again.kv.blocks, again.kv.known_blocks) == (0, first.kv.blocks)
        assert len((await service.list_sessions()).sessions) == 1
        with pytest.raises(Conflict, match="exists already"):
            await imported(service, other_home / "warm", data, name="one")
        other = await imported(service, other_home / "warm", data, name="two")
        assert [s.session for s in other.sessions] == ["two"]
        await service.remove_session("one")
        assert (await turn(service, "two", "and now?")).reused_tokens > 1000

    on_service(other_home, there)


def test_a_session_whose_name_is_taken_gets_another_and_leaves_that_one_alone(home: Path, other_home: Path) -> None:
    data = file_of(home)

    async def there(service: Service) -> None:
        await turn(service, "one", "something else")
        before = await service.export_session("one")
        done = await imported(service, other_home / "warm", data)
        assert done.sessions[0].session != "one"
        assert await service.export_session("one") == before
        assert (await turn(service, done.sessions[0].session, "and now?")).reused_tokens > 1000

    on_service(other_home, there)


def test_a_model_that_is_not_loaded_is_exported_from_the_disk(home: Path, other_home: Path) -> None:
    file_of(home)

    async def away(service: Service) -> None:
        await service._host.on_engine_thread(lambda: service._loop.set_engine(None))
        data = await exported(service, "one")
        assert parts_of(data)[-1].head["tokens"] > 1000

    on_service(home, away)


def test_exporting_a_session_that_does_not_exist_says_so_before_the_first_byte(home: Path) -> None:
    async def check(service: Service) -> None:
        with pytest.raises(NotFound, match="nobody"):
            await exported(service, "nobody")

    on_service(home, check)


def test_a_session_of_which_nothing_was_computed_is_exported_without_kv(home: Path, other_home: Path) -> None:
    async def check(service: Service) -> None:
        await service._thread.run(lambda: service._homes.store.create("empty", origin="chat"))
        data = await exported(service, "empty")
        assert parts_of(data)[-1].head["notes"] == ["nothing of it was computed, so there is no KV"]
        with pytest.raises(TranscriptError, match="none of its messages"):
            await imported(service, other_home / "warm", data)

    on_service(home, check)


def test_a_removed_session_takes_its_imported_kv_from_the_disk(home: Path, other_home: Path) -> None:
    data = file_of(home)
    payload = next(p.body for p in parts_of(data) if p.kind == Kind.KV)

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data)
        assert payload[64:] in stored_bytes(other_home)
        removed = await service.remove_session("one")
        assert done.kv is not None
        assert removed.kv_blocks == done.kv.blocks
        assert payload[64:] not in stored_bytes(other_home)
        assert catalogue(service) == []

    on_service(other_home, there)


def test_a_session_that_answers_while_it_is_exported_is_whole_in_the_file(home: Path, other_home: Path) -> None:
    files: list[bytes] = []

    async def here(service: Service) -> None:
        for _ in range(2):
            await turn(service, "one")
        data, _ = await asyncio.gather(exported(service, "one"), turn(service, "one", "meanwhile"))
        files.append(data)

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", files[0])
        assert done.problems == []
        assert (await turn(service, "one", "and now?")).reused_tokens > 1000

    on_service(home, here)
    on_service(other_home, there)
