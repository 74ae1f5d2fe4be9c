"""Warm sessions that can't be taken whole: damaged files, other versions, budgets, homes without tiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from akashic_daemon.errors import TranscriptError
from akashic_daemon.protocol import archive
from akashic_daemon.protocol.archive import Kind, Part
from akashic_daemon.service import Service
from akashic_daemon.tiers.staging import Staging
from tiers_service import catalogue, on_service, settled, tier
from warm_files import file_of, flipped, imported, joined, parts_of, place_of, turn


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
