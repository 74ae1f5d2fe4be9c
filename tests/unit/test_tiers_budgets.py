"""Sizes of the tiers: how they are written, what auto means, and what a machine can't hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akashic_daemon.config import CacheSection, load, parse_size, size_text
from akashic_daemon.errors import ConfigError
from akashic_daemon.tiers.budgets import PROCESS_BYTES, Budgets, Machine, check_budgets, resolve

GIB = 1 << 30
MACHINE = Machine(memory_bytes=32 * GIB, disk_free_bytes=100 * GIB)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * GIB),
        ("500MB", 500_000_000),
        ("1.5 gib", 3 * GIB // 2),
        ("64 kib", 65_536),
        ("2TB", 2 * 10**12),
        ("1000", 1000),
        ("12 B", 12),
        (4096, 4096),
        ("0", 0),
        (0, 0),
        ("Auto", "auto"),
    ],
)
def test_a_size_is_read_as_people_write_it(text: object, size: object) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["4G", "", "GiB", "-1", -1, True, 1.5, "1.5", "4 GiB more", "1e9", "٤GiB", None, "nan"]
)
def test_what_is_no_size_is_refused_and_the_units_named(text: object) -> None:
    with pytest.raises(ValueError, match=r"KiB, MiB, GiB.*kB, MB, GB"):
        parse_size(text)


@given(st.integers(0, 1 << 50) | st.builds(lambda n, u: n * u, st.integers(0, 9999), st.sampled_from([1 << 30, 10**6])))
def test_a_size_that_is_printed_is_read_as_the_same(size: int) -> None:
    assert parse_size(size_text(size)) == size


def test_a_size_is_shown_readably_and_kept_as_bytes(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[cache]\nram_bytes = "2GiB"\nssd_bytes = 500000000\n')
    cache = load(file, env={"AKASHIC_CACHE_SSD_DAILY_WRITE_BYTES": "3 MiB"}).config.cache
    assert (cache.ram_bytes, cache.ssd_bytes, cache.ssd_daily_write_bytes) == (2 * GIB, 500_000_000, 3 << 20)
    shown = cache.model_dump()
    assert [shown[k] for k in ("ram_bytes", "ssd_bytes", "ssd_daily_write_bytes")] == ["2GiB", "500MB", "3MiB"]


def test_a_wrong_size_in_the_settings_is_named_with_its_setting(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[cache]\nssd_bytes = "4G"\n')
    with pytest.raises(ConfigError, match=r"cache\.ssd_bytes, from .*config\.toml.*no size.*'4G'"):
        load(file, env={})


def test_auto_is_a_share_of_the_machine_up_to_a_limit() -> None:
    auto = CacheSection()
    assert resolve(auto, MACHINE) == Budgets(4 * GIB, 10 * GIB, 40 * GIB)
    assert resolve(auto, Machine(1024 * GIB, 10_000 * GIB)) == Budgets(8 * GIB, 32 * GIB, 128 * GIB)


def test_auto_on_the_disk_does_not_change_by_what_the_tier_itself_takes() -> None:
    full = Machine(32 * GIB, disk_free_bytes=91 * GIB, ssd_used_bytes=9 * GIB)
    assert resolve(CacheSection(), full).ssd_bytes == resolve(CacheSection(), MACHINE).ssd_bytes


def test_auto_leaves_the_model_its_memory() -> None:
    budgets = resolve(CacheSection(), MACHINE, kv_bytes=10 * GIB, model_bytes=20 * GIB)
    assert budgets.ram_bytes == 2 * GIB - PROCESS_BYTES
    check_budgets(budgets, MACHINE, kv_bytes=10 * GIB, model_bytes=20 * GIB)
    assert resolve(CacheSection(), MACHINE, model_bytes=40 * GIB).ram_bytes == 0


def test_what_is_set_counts_and_the_daily_writes_follow_it() -> None:
    cache = CacheSection.model_validate({"ram_bytes": "0", "ssd_bytes": "1GiB"})
    assert resolve(cache, MACHINE) == Budgets(0, GIB, 4 * GIB)
    none = CacheSection.model_validate({"ssd_bytes": 0, "ssd_daily_write_bytes": 7})
    assert resolve(none, MACHINE) == Budgets(4 * GIB, 0, 7)


def test_a_ram_tier_larger_than_the_machine_is_refused_with_numbers_and_what_would_fit() -> None:
    with pytest.raises(ConfigError, match=r"30\.00 GiB.*2\.00 GiB.*1\.00 GiB.*32\.00 GiB.*29457MiB or less"):
        check_budgets(Budgets(30 * GIB, 0, 0), MACHINE, kv_bytes=GIB, model_bytes=2 * GIB)
    check_budgets(Budgets(29457 << 20, 0, 0), MACHINE, kv_bytes=GIB, model_bytes=2 * GIB)


def test_no_ram_tier_is_never_too_large() -> None:
    check_budgets(Budgets(0, 0, 0), MACHINE, model_bytes=40 * GIB)


def test_an_ssd_tier_larger_than_the_disk_is_refused_but_what_it_takes_already_counts_as_room() -> None:
    check_budgets(Budgets(0, 100 * GIB, 0), MACHINE)
    with pytest.raises(ConfigError, match=r"101\.00 GiB.*100\.00 GiB free.*0\.00 GiB already.*102400MiB or less"):
        check_budgets(Budgets(0, 101 * GIB, 0), MACHINE)
    check_budgets(Budgets(0, 101 * GIB, 0), Machine(32 * GIB, 100 * GIB, ssd_used_bytes=GIB))
