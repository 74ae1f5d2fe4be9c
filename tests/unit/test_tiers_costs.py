"""Measured costs: medians, the formula of a reload, and a file that may break without harm."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from akashic_daemon.tiers.costs import Costs


def measured(path: Path | None = None, fingerprint: str = "fp", machine: str = "here") -> Costs:
    """Computing takes 1 ms a token; importing 1 ns, RAM 2 ns a byte; the disk 5 ms and 4 ns a byte."""
    costs = Costs(path, fingerprint, machine=machine)
    costs.observe_prefill(100, 0.1)
    costs.observe_import(1_000_000, 0.001)
    costs.observe_arena_read(1_000_000, 0.002)
    for size in (1_000_000, 2_000_000, 8_000_000):
        costs.observe_ssd_read(size, 0.005 + size * 4e-9)
    return costs


def test_a_reload_pays_until_computing_was_measured() -> None:
    costs = Costs(None, "fp")
    assert costs.reload_pays(1, 1 << 40, 1 << 40)
    costs.observe_ssd_read(1000, 100.0)
    assert costs.reload_pays(1, 0, 1 << 40)
    assert costs.compute_s_per_token is None


def test_what_was_not_measured_yet_counts_nothing() -> None:
    costs = Costs(None, "fp")
    costs.observe_prefill(100, 1e-9)
    assert costs.reload_pays(1, 1 << 40, 1 << 40)


def test_each_cost_is_what_was_measured() -> None:
    costs = measured()
    assert costs.compute_s_per_token == pytest.approx(1e-3)
    assert costs.import_s_per_byte == pytest.approx(1e-9)
    assert costs.arena_s_per_byte == pytest.approx(2e-9)
    assert costs.ssd_s_per_byte == pytest.approx(4e-9)
    assert costs.ssd_latency_s == pytest.approx(5e-3)


def test_a_reload_pays_exactly_where_it_takes_no_longer_than_computing() -> None:
    costs = measured()
    assert costs.reload_s(1_000_000, 0) == pytest.approx(0.003)
    assert costs.reload_s(1_000_000, 2_000_000) == pytest.approx(3 * 0.003 + 0.005 + 0.008)
    assert costs.reload_pays(4, 1_000_000, 0)
    assert not costs.reload_pays(2, 1_000_000, 0)
    assert costs.reload_pays(23, 1_000_000, 2_000_000)
    assert not costs.reload_pays(21, 1_000_000, 2_000_000)
    assert not costs.reload_pays(0, 1, 0)
    assert costs.reload_pays(0, 0, 0)


def test_a_few_measurements_of_a_busy_machine_change_little() -> None:
    costs = Costs(None, "fp")
    for n in range(20):
        costs.observe_prefill(100, 10.0 if n % 4 == 0 else 0.1)
        size = (1 + n % 5) * 1_000_000
        costs.observe_ssd_read(size, 3.0 if n % 7 == 0 else 0.001 + size * 1e-9)
    assert costs.compute_s_per_token == pytest.approx(1e-3)
    assert costs.ssd_s_per_byte == pytest.approx(1e-9, rel=0.3)
    assert costs.ssd_latency_s == pytest.approx(1e-3, rel=0.5)


def test_reads_of_one_size_tell_no_latency_apart() -> None:
    costs = Costs(None, "fp")
    for seconds in (0.01, 0.02, 0.03):
        costs.observe_ssd_read(1_000_000, seconds)
    assert costs.ssd_latency_s == 0.0
    assert costs.ssd_s_per_byte == pytest.approx(2e-8)


def test_no_measurements_make_a_latency_or_a_rate_negative() -> None:
    costs = Costs(None, "fp")
    costs.observe_ssd_read(1_000, 5.0)
    costs.observe_ssd_read(1_000_000, 0.001)
    assert costs.ssd_latency_s is not None
    assert costs.ssd_latency_s >= 0
    assert costs.ssd_s_per_byte is not None
    assert costs.ssd_s_per_byte > 0


def test_a_change_of_the_machine_is_taken_up() -> None:
    costs = measured()
    for _ in range(40):
        costs.observe_prefill(100, 0.5)
    assert costs.compute_s_per_token == pytest.approx(5e-3)


def test_short_prefills_and_empty_measurements_count_nothing() -> None:
    costs = Costs(None, "fp")
    costs.observe_prefill(1, 0.5)
    costs.observe_prefill(31, 0.5)
    costs.observe_import(0, 0.5)
    costs.observe_import(10, -0.5)
    assert (costs.compute_s_per_token, costs.import_s_per_byte) == (None, None)


def test_a_reload_that_was_too_slow_is_tried_again_after_many_prefills_without_one() -> None:
    costs = measured()
    costs.observe_import(1, 100.0)
    costs.observe_import(1, 100.0)
    assert not costs.reload_pays(1000, 1_000_000, 0)
    for _ in range(255):
        costs.observe_prefill(100, 0.1)
    assert not costs.reload_pays(1000, 1_000_000, 0)
    costs.observe_prefill(100, 0.1)
    assert costs.reload_pays(1000, 1_000_000, 0)
    assert costs.import_s_per_byte is None


def test_costs_are_kept_by_machine_and_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "costs.json"
    measured(path).save()
    other = Costs(path, "other", machine="here")
    other.observe_prefill(100, 5.0)
    other.save()
    again = Costs(path, "fp", machine="here")
    assert again.compute_s_per_token == pytest.approx(1e-3)
    assert again.reload_s(1_000_000, 2_000_000) == pytest.approx(0.022)
    assert Costs(path, "other", machine="here").compute_s_per_token == pytest.approx(0.05)
    assert Costs(path, "fp", machine="elsewhere").compute_s_per_token is None
    assert [p.name for p in path.parent.iterdir()] == ["costs.json"]


def test_the_file_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    for n in range(80):
        costs = Costs(path, f"fp{n}", machine="here")
        for _ in range(50):
            costs.observe_prefill(100, 0.1)
        costs.save()
    kept = json.loads(path.read_text())
    assert list(kept) == [f"here|fp{n}" for n in range(16, 80)]
    assert all(len(v["prefill"]) == 31 for v in kept.values())


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "{",
        "[]",
        "3",
        '{"here|fp": 3}',
        '{"here|fp": {"prefill": [[1, "x"]]}}',
        '{"here|fp": {"prefill": [1]}}',
        '{"here|fp": {"prefill": [[0, 1]]}}',
        '{"here|fp": {"prefill": [[1, -1]]}}',
        '{"here|fp": {"prefill": [[1, NaN]]}}',
        '{"here|fp": {"prefill": [[Infinity, 1]]}}',
    ],
)
def test_a_broken_file_is_said_and_begun_anew(tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "costs.json"
    path.write_text(broken)
    with caplog.at_level(logging.WARNING):
        costs = Costs(path, "fp", machine="here")
    assert costs.compute_s_per_token is None
    assert "costs.json" in caplog.text
    costs.observe_prefill(100, 0.1)
    costs.save()
    assert Costs(path, "fp", machine="here").compute_s_per_token == pytest.approx(1e-3)


def test_bytes_that_are_no_text_are_a_broken_file_too(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert Costs(path, "fp").compute_s_per_token is None


def test_a_kind_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text('{"here|fp": {"teleport": [[1, 1]], "prefill": [[100, 0.1]]}}')
    assert Costs(path, "fp", machine="here").compute_s_per_token == pytest.approx(1e-3)


def test_a_place_that_cannot_be_written_is_said_and_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    costs = measured()
    costs._path = tmp_path / "file" / "costs.json"
    with caplog.at_level(logging.WARNING):
        costs.save()
    assert "can't be kept" in caplog.text
    assert costs.compute_s_per_token == pytest.approx(1e-3)
