"""The routes of the tiers: shapes, refusals that say what to do, and metrics that a scraper can read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from akashic_daemon.api.app import create_app
from akashic_daemon.protocol.native import Stats, Status, StoreReport
from akashic_daemon.protocol.tiers import Hinted, Prefetched, Pruned, TierReport
from akashic_daemon.service import Service
from tiers_service import LONG, on_service, settled

_SAMPLE = re.compile(r'[a-z_0-9]+(\{[a-z_]+="[^"\\\n]*"(,[a-z_]+="[^"\\\n]*")*\})? -?[0-9.e+-]+')
NATIVE = "/akashic/v1"


def client_of(service: Service, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(service, token=None, **options), client=("127.0.0.1", 5))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1")


def chat(session: str, **ours: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": LONG}],
        "max_tokens": 5,
        "akashic": {"session": session, **ours},
    }


def one_line(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200
    (line,) = [line for line in response.text.splitlines() if line]
    found: dict[str, Any] = json.loads(line)
    return found


def test_status_stats_and_the_tiers_route_say_the_same_of_the_tiers(home: Path) -> None:
    async def check(service: Service) -> None:
        async with client_of(service) as client:
            assert (await client.post("/v1/chat/completions", json=chat("one"))).status_code == 200
            report = await settled(service)
            told = TierReport.model_validate((await client.get(f"{NATIVE}/cache/tiers")).json())
            status = Status.model_validate((await client.get(f"{NATIVE}/status")).json())
            stats = Stats.model_validate((await client.get(f"{NATIVE}/stats")).json())
            assert told == status.tiers == stats.tiers == report
            assert status.warnings == []

    on_service(home, check)


def test_prefetch_prune_and_verify_answer_with_one_line(home: Path) -> None:
    async def check(service: Service) -> None:
        async with client_of(service) as client:
            await client.post("/v1/chat/completions", json=chat("one"))
            await settled(service)
            prefetched = Prefetched.model_validate(one_line(await client.post(f"{NATIVE}/sessions/one/prefetch")))
            assert prefetched.tokens_in_ram > 300
            told = Pruned.model_validate(one_line(await client.post(f"{NATIVE}/cache/prune", json={"to_bytes": 0})))
            assert told.dry_run
            assert told.ssd_blocks > 3
            found = StoreReport.model_validate(one_line(await client.get(f"{NATIVE}/cache/verify", params={"fix": 1})))
            assert found.findings == []
            missing = await client.post(f"{NATIVE}/sessions/nobody/prefetch")
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")

    on_service(home, check)


def test_a_hint_comes_by_its_route_or_with_a_request(home: Path) -> None:
    async def check(service: Service) -> None:
        async with client_of(service) as client:
            body = chat("one", hint={"expect_s": 300})
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            assert (await service.upkeep.report()).hints == 1
            hinted = await client.post(f"{NATIVE}/sessions/one/hint", json={"expect_s": 20})
            assert Hinted.model_validate(hinted.json()).is_taken
            assert (await service.upkeep.report()).hints == 2

    on_service(home, check)


@pytest.mark.parametrize("wrong", [{"expect_s": -1}, {"expect_s": 1e9}, {"expect_s": "soon"}, {"expected": 3}, 20])
def test_a_hint_that_means_nothing_is_refused_by_name(home: Path, wrong: Any) -> None:
    async def check(service: Service) -> None:
        async with client_of(service) as client:
            refused = await client.post("/v1/chat/completions", json=chat("one", hint=wrong))
            assert refused.status_code == 400
            assert "akashic.hint" in refused.json()["error"]["message"]

    on_service(home, check)


@pytest.mark.parametrize(
    "body", [{}, {"dry_run": False}, {"to_bytes": -1}, {"unused_for_s": -1}, {"all": True}, {"to_bytes": "2GiB"}]
)
def test_a_prune_of_nothing_or_of_what_cannot_be_meant_is_refused(home: Path, body: dict[str, Any]) -> None:
    async def check(service: Service) -> None:
        async with client_of(service) as client:
            response = await client.post(f"{NATIVE}/cache/prune", json=body)
            assert (response.status_code, response.json()["error"]["code"]) == (400, "bad_request")

    on_service(home, check)


def test_metrics_are_in_prometheus_format_and_count_what_happened(home: Path) -> None:
    async def check(service: Service) -> None:
        async with client_of(service) as client:
            await client.post("/v1/chat/completions", json=chat("one"))
            await settled(service)
            response = await client.get("/metrics")
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            lines = response.text.splitlines()
            samples = [line for line in lines if not line.startswith("#")]
            assert [line for line in samples if not _SAMPLE.fullmatch(line)] == []
            values = dict(line.rsplit(" ", 1) for line in samples)
            assert len(values) == len(samples), "a sample stands twice"
            assert values["akashic_requests_total"] == "1"
            assert int(values['akashic_tier_blocks{tier="ssd"}']) > 3
            assert (
                values["akashic_disk_written_bytes_total"] == values['akashic_moved_bytes_total{way="out_of_engine"}']
            )

    on_service(home, check)
