"""How wide the view of the tiers is on a terminal: nothing of a number is ever cut."""

from __future__ import annotations

import re

import pytest

from akashic_cli.render import tiers
from akashic_daemon.protocol.tiers import Tier, TierReport

GIB = 1 << 30
BIG = TierReport(
    tiers=[
        Tier(tier="gpu", budget_bytes=720 << 20, used_bytes=90 << 20, payload_bytes=90 << 20, tokens=1_234_567),
        Tier(tier="ram", budget_bytes=GIB, used_bytes=GIB // 2, payload_bytes=GIB // 3, blocks=180, hit_tokens=987_654_321),
        Tier(tier="ssd", is_on=False),
    ]
)  # fmt: skip


@pytest.mark.parametrize("columns", [30, 60, 78, 80, 84, 90, 100, 300])
def test_every_number_is_whole_however_narrow_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    tiers.print_tiers(BIG)
    view = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).split("\n\n")[0]
    for number in ("720.0 MiB", "512.0 MiB", "1.0 GiB", "987,654,321", "1,234,567 tokens", "33.3%", "off"):
        assert number in view
    is_table = view.startswith("TIER")
    assert is_table == (columns >= 84)
    if is_table:
        assert max(map(len, view.splitlines())) <= columns
        assert "▒" in view
