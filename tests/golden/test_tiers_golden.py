"""How the tiers are drawn when stdout isn't a terminal, and what `/metrics` says of them.

After a wanted change, `python tests/golden/test_tiers_golden.py` writes the expected files anew; read their diff.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from akashic_cli.render import counters
from akashic_cli.render.output import print_fields
from akashic_cli.render.tiers import bar, print_tiers, summary
from akashic_daemon.api.metrics import metrics_text
from akashic_daemon.protocol.native import EngineStatus, SessionActivity, Stats
from akashic_daemon.protocol.tiers import Evictions, Moved, Moves, Tier, TierReport, Wear

FOLDER = Path(__file__).parent / "tiers"
MIB = 1 << 20

GPU = Tier(tier="gpu", budget_bytes=720 * MIB, used_bytes=90 * MIB, payload_bytes=90 * MIB, tokens=4096, hit_tokens=900)
RAM = Tier(
    tier="ram", budget_bytes=1024 * MIB, used_bytes=512 * MIB, payload_bytes=500 * MIB, blocks=180, hit_tokens=300
)
SSD = Tier(tier="ssd", budget_bytes=8192 * MIB, used_bytes=8000 * MIB, payload_bytes=6000 * MIB, blocks=2160)
REPORT = TierReport(
    tiers=[
        GPU.model_copy(update={"hit_rate": 0.45}),
        RAM.model_copy(update={"hit_rate": 0.15}),
        SSD.model_copy(update={"hit_rate": 0.0}),
    ],
    moves=Moves(
        demoted=Moved(blocks=2340, bytes=6500 * MIB),
        promoted_from_ram=Moved(blocks=12, bytes=33 * MIB),
        promoted_from_ssd=Moved(blocks=40, bytes=111 * MIB),
        waiting_writes=3,
        prefetched_bytes=56 * MIB,
        prefetch_used_bytes=28 * MIB,
        prefetch_wasted_bytes=14 * MIB,
    ),
    evictions=Evictions(
        gpu_tokens=10240,
        gpu_parked_tokens=512,
        ram=Moved(blocks=2160, bytes=6000 * MIB),
        ssd={"budget": 7, "damaged": 1, "removed": 0},
        lost={"ram_full": 3, "unreadable": 1},
    ),
    wear=Wear(
        written_bytes=9000 * MIB,
        rewritten_bytes=400 * MIB,
        read_back_bytes=111 * MIB,
        never_read_bytes=5800 * MIB,
        evicted_unread_bytes=20 * MIB,
        day_written_bytes=900 * MIB,
        day_budget_bytes=32768 * MIB,
        refused={"daily_budget": 4},
    ),
    staging_bytes=45 * MIB,
    reloads=5,
    stall_s=0.4567,
    hints=2,
    hints_met=1,
)
OFF = TierReport(
    tiers=[
        Tier(tier="gpu", is_on=False),
        Tier(tier="ram", is_on=False),
        Tier(tier="ssd", is_on=False, budget_bytes=1024 * MIB),
    ],
    problems=["The SSD tier is off because its disk can't be written: \x1b[31mno"],
)
STATS = Stats(
    reused_by_tier={"gpu": 900, "ram": 300},
    at_s=1.0,
    uptime_s=100.0,
    requests_total=9,
    requests_failed_total=1,
    requests_cancelled_total=2,
    prompt_tokens_total=2000,
    reused_tokens_total=1200,
    computed_tokens_total=800,
    generated_tokens_total=77,
    evicted_tokens_total=10240,
    miss_causes={"cold": 2, "evicted": 1},
    engine=EngineStatus(model="tiny", state="ready", kv_cells_total=32768, kv_cells_used=4096),
    activity=[SessionActivity(request="a", session="s", state="reload"), SessionActivity(request="b", session=None, state="queued")],
    queued=1,
    resident_bytes=990 * MIB,
    tiers=REPORT,
)  # fmt: skip
DRAWINGS: dict[str, Callable[[], None]] = {
    "tiers": lambda: print_tiers(REPORT),
    "tiers-off": lambda: print_tiers(OFF),
    "status": lambda: print_fields([*summary(REPORT), *summary(OFF)]),
    "stats": lambda: print_fields(counters.fields(STATS)),
    "metrics": lambda: print(metrics_text(STATS), end=""),
}


def drawn(name: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        DRAWINGS[name]()
    return said.getvalue()


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_as_expected(name: str) -> None:
    assert drawn(name) == (FOLDER / f"{name}.expected").read_text(encoding="utf-8")


def test_every_expected_file_belongs_to_a_drawing() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.expected" for name in DRAWINGS}


@pytest.mark.parametrize(
    ("used", "payload", "wasted"), [(0, 0, 0), (1, 0, 1), (500, 8, 8), (1023, 15, 16), (1024, 16, 16)]
)
def test_a_bar_is_as_long_as_the_budget_and_shows_what_is_wasted(used: int, payload: int, wasted: int) -> None:
    tier = Tier(tier="ram", budget_bytes=1024, used_bytes=used, payload_bytes=used // 2)
    assert bar(tier, 32) == ("█" * payload + "▒" * wasted).ljust(32, "·")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in DRAWINGS:
        (FOLDER / f"{each}.expected").write_text(drawn(each), encoding="utf-8")
