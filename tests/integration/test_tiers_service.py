"""What people ask of the tiers, on a service with the fake engine: figures, hints, prefetch, prune, verify, deletion."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import BadRequest, Conflict, NotFound, StoreUnwritable, Unsupported
from akashic_daemon.protocol.native import ForkRequest
from akashic_daemon.protocol.tiers import HintRequest, PruneRequest
from akashic_daemon.service import Service
from akashic_daemon.store.blocks.store import BlockStore
from akashic_daemon.tiers.block import Block
from akashic_daemon.types import BLOCK_TOKENS
from fake_service import NEVER, running_service
from tiers_service import LONG, TIERS, catalogue, empty_engine, empty_ram, on_service, say, settled, stored_bytes, tier


def test_the_report_says_what_each_tier_holds_and_gave_back(home: Path) -> None:
    async def check(service: Service) -> None:
        first = await say(service, "one")
        report = await settled(service)
        ram, ssd = tier(report, "ram"), tier(report, "ssd")
        assert ram.is_on
        assert ram.blocks == ssd.blocks == report.moves.demoted.blocks > 3
        assert ram.payload_bytes == report.moves.demoted.bytes
        assert ram.payload_bytes <= ram.used_bytes <= ram.budget_bytes
        assert report.wear.written_bytes == report.moves.demoted.bytes == report.wear.never_read_bytes
        assert report.wear.day_written_bytes > 0
        assert tier(report, "gpu").tokens == first.computed_tokens + 19  # the last token is sampled, not computed
        assert report.evictions.lost == {}
        assert report.staging_bytes > 0
        assert report.problems == []
        await empty_engine(service)
        again = await say(service, "one")
        report = await service.upkeep.report()
        assert again.reused_by_tier["ram"] == tier(report, "ram").hit_tokens > 300
        assert tier(report, "ram").hit_rate == pytest.approx(again.reused_by_tier["ram"] / (2 * first.computed_tokens))
        assert report.moves.promoted_from_ram.blocks >= 3
        assert report.reloads == 1
        assert report.stall_s > 0

    on_service(home, check)


def test_a_prefetch_brings_a_sessions_kv_into_ram_and_says_how_much(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "one")
        await settled(service)
        await empty_ram(service)
        await empty_engine(service)
        done = await service.prefetch("one")
        assert done.blocks_brought >= 4
        assert done.tokens_in_ram == done.tokens_known > 300
        assert done.bytes_in_ram == done.bytes_brought > 0
        assert done.detail == ""
        assert (await service.prefetch("one")).blocks_brought == 0
        reuse = await say(service, "one")
        assert reuse.reused_by_tier["ram"] > 300
        moves = (await service.upkeep.report()).moves
        assert moves.prefetched_bytes == done.bytes_brought
        assert 0 < moves.prefetch_used_bytes <= moves.prefetched_bytes
        assert moves.prefetch_wasted_bytes == 0

    on_service(home, check)


def test_a_prefetch_that_nobody_used_counts_as_wasted(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "one")
        await settled(service)
        await empty_ram(service)
        done = await service.prefetch("one")
        await empty_ram(service)
        assert (await service.upkeep.report()).moves.prefetch_wasted_bytes == done.bytes_brought > 0

    on_service(home, check)


def test_asking_for_a_session_that_does_not_exist_names_it(home: Path) -> None:
    async def check(service: Service) -> None:
        for asking in (service.prefetch("nobody"), service.hint("nobody", HintRequest())):
            with pytest.raises(NotFound, match="'nobody'"):
                await asking

    on_service(home, check)


def test_without_tiers_asking_says_which_settings_make_them(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "one")
        with pytest.raises(Unsupported, match=r"cache\.ram_bytes"):
            await service.prefetch("one")
        with pytest.raises(Unsupported, match=r"cache\.ssd_bytes"):
            await service.prune(PruneRequest(everything=True))
        hinted = await service.hint("one", HintRequest())
        assert not hinted.is_taken
        assert "no tier" in hinted.detail
        report = await service.upkeep.report()
        assert [(t.tier, t.is_on) for t in report.tiers] == [("gpu", True), ("ram", False), ("ssd", False)]
        assert (await service.remove_session("one")).kv_left == ""

    on_service(home, check, flags={"cache.ram_bytes": 0, "cache.ssd_bytes": 0})


def test_a_hinted_session_is_in_the_engine_before_it_asks(home: Path) -> None:
    async def check(service: Service) -> None:
        first = await say(service, "one")
        await settled(service)
        await empty_engine(service)
        hinted = await service.hint("one", HintRequest(expect_s=0))
        assert hinted.is_taken
        assert hinted.tokens >= first.computed_tokens

        async def arrived() -> None:
            while not (await service.stats()).engine.kv_cells_used >= 300:
                await asyncio.sleep(0.005)

        await asyncio.wait_for(arrived(), 60)
        await settled(service)
        assert (await say(service, "one")).reused_by_tier["gpu"] > 300
        report = await service.upkeep.report()
        assert (report.hints, report.hints_met, report.hints_expired) == (1, 1, 0)

    on_service(home, check)


def test_what_takes_longer_to_load_is_computed_again_and_that_is_told(home: Path) -> None:
    async def check(service: Service) -> None:
        first = await say(service, "one")
        await settled(service)
        await empty_engine(service)
        again = await say(service, "one")
        assert again.computed_tokens == first.computed_tokens
        (told,) = [note for note in again.notes if "loading takes longer" in note]
        stored = int(told.split()[0])
        assert first.computed_tokens - BLOCK_TOKENS < stored < first.computed_tokens

    on_service(home, check, reload_pays=False)


def test_a_request_may_say_when_the_next_one_comes(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "one", expect_s=500.0)
        hints = await service._host.on_engine_thread(lambda: dict(service._loop.tiering._hints))
        assert list(hints) == ["one"]
        await service.hint("one", HintRequest(tool_running=False))
        report = await service.upkeep.report()
        assert (report.hints, report.hints_met, report.hints_expired) == (1, 0, 0)
        assert not await service._host.on_engine_thread(lambda: dict(service._loop.tiering._hints))

    on_service(home, check)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_prune_says_what_would_go_and_then_removes_just_that(home: Path, dry_run: bool) -> None:
    async def check(service: Service) -> None:
        await say(service, "one")
        report = await settled(service)
        told = await service.prune(PruneRequest(everything=True))
        assert told.dry_run
        assert (told.ssd_blocks, told.ram_blocks) == (tier(report, "ssd").blocks, tier(report, "ram").blocks)
        assert await settled(service) == report
        if dry_run:
            return
        done = await service.prune(PruneRequest(everything=True, dry_run=False))
        assert (done.ssd_blocks, done.ssd_bytes) == (told.ssd_blocks, told.ssd_bytes)
        assert (done.ram_blocks, done.ram_bytes) == (told.ram_blocks, told.ram_bytes)
        assert done.left == ""
        report = await settled(service)
        assert (tier(report, "ssd").blocks, tier(report, "ram").blocks) == (0, 0)
        assert catalogue(service) == []
        await empty_engine(service)
        assert (await say(service, "one")).reused_tokens == 0

    on_service(home, check)


def test_a_prune_to_a_size_takes_the_coldest_and_nothing_when_there_is_room(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "one")
        await say(service, "two", "b" + LONG)
        before = tier(await settled(service), "ssd")
        assert (await service.prune(PruneRequest(to_bytes=1 << 30))).ssd_blocks == 0
        half = before.payload_bytes // 2
        told = await service.prune(PruneRequest(to_bytes=half))
        assert 0 < told.ssd_blocks < (before.blocks or 0)
        done = await service.prune(PruneRequest(to_bytes=half, dry_run=False))
        after = tier(await settled(service), "ssd")
        assert after.used_bytes <= half
        assert after.blocks == (before.blocks or 0) - done.ssd_blocks

    on_service(home, check)


def test_what_was_used_lately_or_is_the_loaded_models_stays(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "one")
        await settled(service)
        assert (await service.prune(PruneRequest(unused_for_s=3600))).ssd_blocks == 0
        assert (await service.prune(PruneRequest(other_models=True))).ssd_blocks == 0
        with pytest.raises(BadRequest, match="nothing is named"):
            await service.prune(PruneRequest())

    on_service(home, check)


def test_damaged_blocks_are_found_and_put_aside_when_asked(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "one")
        await settled(service)
        assert (await service.verify_store()).findings == []
        flip_a_payload_byte(service)
        found = (await service.verify_store()).findings
        assert [(f.store, f.kind, f.is_mended) for f in found] == [("blocks", "wrong_checksum", False)]
        mended = (await service.verify_store(fix=True)).findings
        assert [(f.kind, f.is_mended) for f in mended] == [("wrong_checksum", True)]
        assert (await service.verify_store()).findings == []
        report = await settled(service)
        assert report.evictions.ssd["damaged"] == 1
        await empty_engine(service)
        await empty_ram(service)
        assert (await say(service, "one")).computed_tokens <= 2 * 128  # the damaged block, and what the end needs

    on_service(home, check)


def flip_a_payload_byte(service: Service) -> None:
    """Damage one stored payload, in an extent or in the index."""
    mover = service.tiers.mover

    def flip() -> None:
        assert mover.ssd is not None
        store = mover.ssd._store
        with store.database.transaction() as c:
            (row,) = c.execute("SELECT id, payload FROM records WHERE payload IS NOT NULL ORDER BY id LIMIT 1")
            payload = bytearray(row[1])
            payload[-1] ^= 1
            c.execute("UPDATE records SET payload = ? WHERE id = ?", (bytes(payload), row[0]))

    mover.call(flip)


def test_a_removed_sessions_kv_is_in_no_tier_and_in_no_file(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "other")
        await say(service, "secret", SECRET * 8)
        await settled(service)
        tokens = next(b for b in catalogue(service) if bytes_of(b).find(b"4711") > 0).tokens.tobytes()
        needle = tokens[:64]
        assert needle in stored_bytes(home)
        removed = await service.remove_session("secret")
        assert removed.kv_blocks >= 3
        assert removed.kv_bytes > 0
        assert removed.kv_left == ""
        assert not any(b"4711" in bytes_of(b) for b in catalogue(service))
        assert needle not in stored_bytes(home)
        await empty_engine(service)
        assert (await say(service, "other")).reused_by_tier["ram"] > 300

    on_service(home, check)


def bytes_of(block: Block) -> bytes:
    return bytes(t for t in block.tokens if t < 256)


def test_blocks_on_their_way_to_the_disk_go_with_their_session(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "one")
        removed = await service.remove_session("one")  # nothing was waited for: exports and writes are under way
        assert removed.kv_left == ""
        report = await settled(service)
        assert (tier(report, "ssd").blocks, tier(report, "ram").blocks) == (0, 0)
        assert catalogue(service) == []

    on_service(home, check)


def test_what_another_session_shares_stays_until_that_one_goes_too(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "one")
        await say(service, "two", LONG + "and more. " * 30)
        both = tier(await settled(service), "ssd").blocks or 0
        await service.remove_session("one")
        report = await settled(service)
        assert 3 <= (tier(report, "ssd").blocks or 0) < both
        await empty_engine(service)
        assert (await say(service, "two", LONG + "and more. " * 30)).computed_tokens <= 2 * 128
        await service.remove_session("two")
        assert tier(await settled(service), "ssd").blocks == 0

    on_service(home, check)


def test_a_branch_keeps_the_blocks_of_its_path_when_the_trunk_is_removed(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "trunk")
        await settled(service)
        await service.fork_session("trunk", ForkRequest(name="branch", at_message=1))
        await settled(service)
        await service.remove_session("trunk")
        await settled(service)
        await empty_engine(service)
        assert (await say(service, "branch")).computed_tokens <= 128

    on_service(home, check)


def test_a_renamed_sessions_blocks_are_the_new_ones(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "old")
        await settled(service)
        service._renamed("old", "new")
        await settled(service)
        assert {g for b in catalogue(service) for g in b.groups} == {"new"}
        blocks = tier(await settled(service), "ssd").blocks
        await service.remove_session("old")
        assert tier(await settled(service), "ssd").blocks == blocks
        gone = await service.upkeep.forget("new", wipe=True)
        assert gone.ssd_blocks == blocks

    on_service(home, check)


def test_a_store_that_cannot_be_opened_is_told_everywhere_and_nothing_else_suffers(home: Path) -> None:
    (home / "store").mkdir(mode=0o700)
    (home / "store" / "blocks.sqlite").write_bytes(b"this is no database" * 100)

    async def check(service: Service) -> None:
        await say(service, "one")
        report = await service.upkeep.report()
        assert not tier(report, "ssd").is_on
        assert ["The SSD tier is off" in p for p in report.problems] == [True]
        status = await service.status()
        assert status.warnings == report.problems
        assert [f.kind for f in (await service.verify_store()).findings] == ["off"]
        assert "SSD tier is off" in (await service.remove_session("one")).kv_left

    on_service(home, check)


SECRET = "the safe is opened with 4711, and nobody else may know of that. "
RAM_ONLY = {"cache.ram_bytes": "1MiB", "cache.ssd_bytes": 0}


def tell_a_secret(home: Path) -> bytes:
    """Run a service to which a secret is told; return bytes that its block store holds from then on."""
    found: list[bytes] = []

    async def check(service: Service) -> None:
        await say(service, "secret", SECRET * 8)
        await settled(service)
        found.append(next(b for b in catalogue(service) if bytes_of(b).find(b"4711") > 0).tokens.tobytes()[:64])

    on_service(home, check)
    assert found[0] in stored_bytes(home)
    return found[0]


async def nothing(_service: Service) -> None:
    """Let a service start and stop."""


def test_a_session_that_is_removed_while_the_tier_is_off_leaves_the_disk_when_it_is_on_again(home: Path) -> None:
    needle = tell_a_secret(home)

    async def check(service: Service) -> None:
        left = (await service.remove_session("secret")).kv_left
        assert left == "the SSD tier is off; it goes when the tier is on again"

    on_service(home, check, flags=RAM_ONLY)
    assert needle in stored_bytes(home)
    on_service(home, nothing)
    assert needle not in stored_bytes(home)
    assert not (home / "store" / "removed_sessions.json").exists()


def test_a_removal_that_was_killed_before_the_kv_was_gone_is_finished_at_the_next_start(home: Path) -> None:
    needle = tell_a_secret(home)

    async def check(service: Service) -> None:
        await service.upkeep.will_forget("secret")  # and there it died

    on_service(home, check, flags=RAM_ONLY)
    on_service(home, nothing)
    assert needle not in stored_bytes(home)


def test_files_that_cannot_be_rewritten_now_are_told_and_rewritten_at_the_next_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needle = tell_a_secret(home)

    async def check(service: Service) -> None:
        def refuse(_store: BlockStore, **_options: object) -> None:
            raise Conflict("another process reads the index", hint="close it")

        with monkeypatch.context() as patch:
            patch.setattr("akashic_daemon.tiers.ssd.compact", refuse)
            assert "another process reads the index" in (await service.remove_session("secret")).kv_left

    on_service(home, check)
    assert (home / "store" / "removed_sessions.json").exists()
    on_service(home, nothing)
    assert needle not in stored_bytes(home)


def test_a_disk_that_takes_no_note_of_a_removal_refuses_it_and_the_session_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(service: Service) -> None:
        await say(service, "one")

        def refuse(*_: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("akashic_daemon.tiers.pending.os.open", refuse)
            with pytest.raises(StoreUnwritable, match="No space left on device"):
                await service.remove_session("one")
        assert (await service.get_session("one")).summary.messages == 2
        assert (await service.remove_session("one")).kv_left == ""

    on_service(home, check)


def test_a_note_that_cannot_be_read_is_said_and_files_are_rewritten(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "store").mkdir(mode=0o700)
    (home / "store" / "removed_sessions.json").write_text("{")
    on_service(home, nothing)
    assert "removed_sessions.json can't be read" in caplog.text


def test_asking_right_after_the_start_waits_for_the_default_model(home: Path) -> None:
    async def check(service: Service) -> None:
        await say(service, "one")
        await settled(service)

    on_service(home, check)

    async def run() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine(end_every=NEVER), flags=TIERS) as service:
            assert (await service.prefetch("one")).tokens_known > 300

    asyncio.run(run())


def test_a_disk_that_stops_working_is_told_until_it_works_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(service: Service) -> None:
        def refuse(*_: object) -> None:
            raise StoreUnwritable("writing blocks: No space left on device", hint="free disk space")

        with monkeypatch.context() as patch:
            patch.setattr("akashic_daemon.tiers.ssd.SsdTier._put", refuse)
            await say(service, "one")
            report = await settled(service)
            assert ["No space left on device" in problem for problem in report.problems] == [True]
            assert (await service.status()).warnings == report.problems
            assert report.wear.refused["unwritable"] > 3
            assert report.evictions.lost == {}  # RAM has them
        await say(service, "two", "b" + LONG)
        report = await settled(service)
        assert report.problems == []
        assert (tier(report, "ssd").blocks or 0) > 3

    on_service(home, check)
