"""A session with its KV as one file: out of one home, into another, on services with the fake engine."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import Conflict, NotFound, TranscriptError
from akashic_daemon.protocol import archive
from akashic_daemon.protocol.archive import Damage, Kind, Part
from akashic_daemon.protocol.context import OpsRequest, PolicyRequest
from akashic_daemon.protocol.native import ImportEvent, Reuse, TurnRequest
from akashic_daemon.service import Service
from akashic_daemon.tiers.staging import Staging
from fake_service import NEVER, running_service
from tiers_service import LONG, TIERS, catalogue, empty_engine, empty_ram, on_service, settled, stored_bytes, tier

Check = Callable[[Service], Awaitable[None]]


@pytest.fixture
def other_home(tmp_path: Path) -> Path:
    """Return another home."""
    path = tmp_path / "other"
    path.mkdir()
    return path


async def turn(service: Service, session: str, text: str = LONG) -> Reuse:
    """Run a turn of a stored session; return what it reused."""
    async with aclosing(service.turn(session, TurnRequest(prompt=text, max_tokens=20))) as events:
        async for event in events:
            if event.kind == "done":
                assert event.reuse is not None
                return event.reuse
    raise AssertionError("the turn ended without an answer")


async def exported(service: Service, session: str) -> bytes:
    """Return a session's file."""
    async with aclosing(service.export_warm(session)) as pieces:
        return b"".join([piece async for piece in pieces])


async def imported(service: Service, path: Path, data: bytes, name: str | None = None) -> ImportEvent:
    """Import a file; return the last event."""
    path.write_bytes(data)
    async with aclosing(service.import_transcript(path, format=None, name=name, label="warm")) as events:
        found = [event async for event in events]
    assert found[-1].kind == "done"
    return found[-1]


def parts_of(data: bytes) -> list[Part]:
    """Return the parts of a file without damage."""
    found = list(archive.read_parts(io.BytesIO(data), "warm"))
    assert not [f for f in found if isinstance(f, Damage)]
    return [f for f in found if isinstance(f, Part)]


def joined(parts: list[Part]) -> bytes:
    """Return a file of these parts."""
    pieces = [piece for p in parts for piece in archive.part(Kind(p.kind), p.head, p.body)]
    return archive.begin() + b"".join(pieces)


def place_of(data: bytes, kind: Kind, number: int = 0) -> int:
    """Return where a part's last byte of what it holds stands."""
    found = [p for p in parts_of(data) if p.kind == kind][number]
    return found.end_bytes - 17


def flipped(data: bytes, at: int) -> bytes:
    """Return the file with one byte changed."""
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


def file_of(home: Path, *, flags: dict[str, Any] | None = None, turns: int = 2, before: Check | None = None) -> bytes:
    """Return the file of a session with some turns."""
    out: list[bytes] = []

    async def check(service: Service) -> None:
        for _ in range(turns):
            await turn(service, "one")
        if before is not None:
            await before(service)
        out.append(await exported(service, "one"))

    on_service(home, check, flags=flags)
    return out[0]


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


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Kind.HOME, "what the session is called"),
        (Kind.PROGRAM, "policy and operations"),
        (Kind.SAMPLED, "sampled answers"),
        (Kind.TRACE, "computed last"),
        (Kind.KV, "a block of KV"),
        (Kind.LABEL, "the label of a block"),
    ],
)
def test_a_damaged_part_is_named_and_the_rest_imported(home: Path, other_home: Path, kind: Kind, said: str) -> None:
    data = file_of(home)
    data = flipped(data, place_of(data, kind, number=2 if kind in (Kind.KV, Kind.LABEL) else 0))

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data, name="one")
        assert [p.count for p in done.problems if said in p.reason] == [1]
        assert [(s.session, s.messages) for s in done.sessions] == [("one", 4)]
        assert done.kv is not None
        assert done.kv.blocks > (1 if kind is Kind.LABEL else 8)
        await turn(service, "one", "and now?")

    on_service(other_home, there)


def test_messages_after_a_damaged_one_are_left_out_and_counted(home: Path, other_home: Path) -> None:
    parts = parts_of(file_of(home))
    some = next(p for p in parts if p.kind == Kind.MESSAGES)
    lines = some.body.splitlines(keepends=True)
    each = [Part(some.kind, {"first": i, "count": 1}, line, 0) for i, line in enumerate(lines)]
    data = joined([parts[0], *each, *parts[2:]])
    data = flipped(data, place_of(data, Kind.MESSAGES, 2))

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data)
        assert done.messages == 2
        assert {p.reason: p.count for p in done.problems} == {
            "damaged: messages": 1,
            "messages that follow on damaged ones were left out": 1,
        }
        assert (await turn(service, "one", "and now?")).reused_tokens > 500

    on_service(other_home, there)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_file_that_was_cut_off_gives_what_it_has(home: Path, other_home: Path, share: float) -> None:
    data = file_of(home)

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data[: int(len(data) * share)])
        assert any("cut off" in p.reason for p in done.problems)
        assert done.messages == 4
        await turn(service, "one", "and now?")

    on_service(other_home, there)


def test_bytes_that_are_no_part_are_passed_over(home: Path, other_home: Path) -> None:
    data = file_of(home)
    at = [p for p in parts_of(data) if p.kind == Kind.LABEL][1].end_bytes
    data = data[:at] + b"what is this?" * 9999 + data[at:]

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data)
        assert [p.reason for p in done.problems] == [f"at byte {at:,}: something that is no part"]
        assert (await turn(service, "one", "and now?")).reused_tokens > 1000

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


def test_budgets_hold_and_what_has_no_room_is_told(home: Path, other_home: Path) -> None:
    data = file_of(home, turns=4)

    async def there(service: Service) -> None:
        await turn(service, "resident", "a question of its own. " * 30)
        await settled(service)
        done = await imported(service, other_home / "warm", data)
        report = await service.upkeep.report()
        ram = tier(report, "ram")
        assert ram.used_bytes <= ram.budget_bytes
        assert done.kv is not None
        assert done.kv.blocks > 0
        assert done.kv.left_out_blocks > 0
        assert [p.count for p in done.problems if "no room" in p.reason] == [done.kv.left_out_blocks]
        assert all(b.pins == 0 for b in catalogue(service))
        await turn(service, "one", "and now?")

    on_service(other_home, there, flags={"cache.ram_bytes": "48KiB", "cache.ssd_bytes": 0})


def test_a_home_without_tiers_takes_the_session_and_says_why_its_kv_stays_out(home: Path, other_home: Path) -> None:
    data = file_of(home)

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data)
        assert done.kv is not None
        assert "cache.ram_bytes" in done.kv.detail
        assert done.messages == 4

    on_service(other_home, there, flags={"cache.ram_bytes": 0, "cache.ssd_bytes": 0})


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


def test_a_newer_version_of_the_file_is_refused_by_number(home: Path, other_home: Path) -> None:
    data = archive.MAGIC + b"\x63\x00\x00\x00"

    async def check(service: Service) -> None:
        with pytest.raises(TranscriptError, match="version 99"):
            await imported(service, other_home / "warm", data)

    on_service(home, check)


def test_the_disks_daily_budget_holds_and_what_it_refuses_goes_to_ram(home: Path, other_home: Path) -> None:
    data = file_of(home, turns=4)

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data)
        report = await service.upkeep.report()
        assert 0 < report.wear.day_written_bytes <= 9 << 10
        assert tier(report, "ram").used_bytes <= 16 << 10
        blocks = catalogue(service)
        assert any(b.on_ssd for b in blocks)
        assert any(b.slots is not None for b in blocks)
        assert done.kv is not None
        assert done.kv.blocks == sum(b.has_copy for b in blocks)
        assert done.kv.left_out_blocks == sum(p.kind == Kind.KV for p in parts_of(data)) - done.kv.blocks > 0
        first_end = min((b.end for b in blocks if b.has_copy), default=0)
        assert first_end <= 128  # the beginning is what has room: a tail is of no use without it
        assert (await turn(service, "one", "and now?")).reused_tokens > 500

    flags = {"cache.ram_bytes": "16KiB", "cache.ssd_bytes": "256MiB", "cache.ssd_daily_write_bytes": "9KiB"}
    on_service(other_home, there, flags=flags)


def test_blocks_that_are_stored_in_another_way_are_left_out_and_told(home: Path, other_home: Path) -> None:
    data = file_of(home)

    async def there(service: Service) -> None:
        service.tiers.mover.incoming = Staging(2, 64)
        done = await imported(service, other_home / "warm", data)
        assert done.kv is not None
        assert done.kv.blocks == 0
        assert [p.count for p in done.problems if "cache.kv_storage" in p.reason] == [done.kv.left_out_blocks]
        assert catalogue(service) == []

    on_service(other_home, there)


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
