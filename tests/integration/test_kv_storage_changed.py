"""KV that is stored otherwise than the setting says has other values: it is never taken for what would be computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.protocol.tiers import PruneRequest
from akashic_daemon.service import Service
from tiers_service import TIERS, catalogue, on_service, settled
from warm_files import file_of, imported, turn

STORED: list[dict[str, Any]] = [TIERS | {"cache.kv_storage": kind} for kind in ("as_computed", "q8")]


@pytest.mark.parametrize(("before", "after"), [STORED, STORED[::-1]], ids=["exact, then q8", "q8, then exact"])
def test_a_restart_with_another_storage_reuses_nothing_stored_before(
    home: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    async def first(service: Service) -> None:
        await turn(service, "one")
        await settled(service)

    async def with_another(service: Service) -> None:
        assert catalogue(service) == []
        assert (await turn(service, "one", "and now?")).reused_tokens == 0
        await settled(service)

    async def as_before(service: Service) -> None:
        assert (await turn(service, "one", "and then?")).reused_tokens > 500

    on_service(home, first, flags=before)
    on_service(home, with_another, flags=after)
    on_service(home, as_before, flags=before)


@pytest.mark.parametrize(("before", "after"), [STORED, STORED[::-1]], ids=["exact, then q8", "q8, then exact"])
def test_a_file_of_kv_that_is_stored_otherwise_gives_the_session_and_says_what_it_leaves_out(
    home: Path, other_home: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    data = file_of(home, flags=before)

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data)
        assert done.kv is not None
        assert (done.messages, done.kv.blocks) == (4, 0)
        assert done.kv.left_out_blocks > 3
        assert [p.count for p in done.problems if "cache.kv_storage" in p.reason] == [done.kv.left_out_blocks]
        assert len(done.problems) == 1
        assert catalogue(service) == []

    on_service(other_home, there, flags=after)


@pytest.mark.parametrize("stored", STORED, ids=["exact", "q8"])
def test_what_is_stored_as_the_setting_says_is_no_other_models_and_goes_into_files(
    home: Path, other_home: Path, stored: dict[str, Any]
) -> None:
    async def before(service: Service) -> None:
        await settled(service)
        gone = await service.upkeep.prune(PruneRequest(other_models=True, dry_run=False))
        assert (gone.ssd_blocks, gone.ram_blocks) == (0, 0)

    data = file_of(home, flags=stored, before=before)

    async def there(service: Service) -> None:
        done = await imported(service, other_home / "warm", data)
        assert done.kv is not None
        assert done.kv.blocks > 3
        assert done.problems == []
        assert (await turn(service, "one", "and now?")).reused_tokens > 500

    on_service(other_home, there, flags=stored)
