"""The commands about the tiers, against a stand-in daemon, and sizes and durations as people type them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from akashic_cli.__main__ import main
from akashic_cli.doctor import Level
from akashic_cli.doctor.serving import check_tiers
from akashic_cli.quantities import parse_bytes, parse_duration
from akashic_daemon.paths import find_paths
from akashic_daemon.protocol import native
from akashic_daemon.protocol.tiers import Hinted, Tier, TierReport
from cli_daemon import FakeDaemon

PROBLEM = "The SSD tier is off because its disk can't be written."


def sent(daemon: FakeDaemon) -> Any:
    """Return the body or query of the last request."""
    return daemon.requests[-1][2]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20s", 20), ("7d", 7 * 86400), ("1.5 min", 90), ("2m", 120), ("500ms", 0.5), ("1H", 3600), ("2w", 1209600), ("0s", 0)],
)  # fmt: skip
def test_durations_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "20", "s", "-5s", "5 years", "1e3s", "nan s", "inf s", "5s 3s", "auto"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"e\.g\. 20s or 7d"):
        parse_duration(text)


def test_sizes_are_read_as_in_the_settings_but_never_auto() -> None:
    assert parse_bytes("2GiB") == 2 << 30
    assert parse_bytes("500MB") == 500_000_000
    assert parse_bytes("0") == 0
    for wrong in ("auto", "", "-1", "2 giants", "1.5"):
        with pytest.raises(ValueError, match=r"e\.g\. 2GiB"):
            parse_bytes(wrong)


def test_a_prune_only_tells_what_would_go_until_yes(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "prune", "--unused", "7d", "--to", "2GiB"]) == 0
    said = capsys.readouterr()
    assert said.out == "would go from SSD: 3 blocks, 2.0 KiB\n"
    assert "--yes does it" in said.err
    wanted = {"everything": False, "unused_for_s": 604800.0, "other_models": False, "to_bytes": 2 << 30}
    assert sent(daemon) == {**wanted, "dry_run": True}
    daemon.pruned = daemon.pruned.model_copy(update={"dry_run": False, "freed_bytes": 1024, "left": "a reader"})
    assert main(["cache", "prune", "--all", "--yes"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "removed from SSD: 3 blocks, 2.0 KiB",
        "removed from RAM: 0 blocks, 0 B",
        "the disk got back 1.0 KiB",
        "still on the disk: a reader",
    ]
    assert said.err == ""
    assert (sent(daemon)["everything"], sent(daemon)["dry_run"]) == (True, False)


def test_a_prune_as_json_is_one_document(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "prune", "--other-models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["dry_run"], found["ssd_blocks"]) == (True, 3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cache", "prune"], "add --all, --unused 7d, --other-models or --to 2GiB"),
        (["cache", "prune", "--yes"], "nothing is named to remove"),
        (["cache", "prune", "--unused", "7"], "e.g. 20s or 7d"),
        (["cache", "prune", "--to", "much"], "e.g. 2GiB"),
        (["session", "hint", "one"], "add --tool-running, --expect 20s or both"),
        (["session", "hint", "one", "--expect", "soon"], "e.g. 20s or 7d"),
        (["session", "hint", "one", "--expect", "2d"], "at most 1d"),
        (["session", "hint", "one", "--no-tool-running", "--expect", "2s"], "doesn't go with --no-tool-running"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_sent(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(arguments) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert daemon.requests == []


def test_a_prefetch_says_how_much_is_in_ram_and_why_not_all(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "prefetch", "one"]) == 0
    said = capsys.readouterr()
    assert said.out == "400 of 500 stored tokens are in RAM, 4.0 KiB; 1.0 KiB came from SSD\n"
    assert said.err == "no room\n"
    assert daemon.requests[-1][1].endswith("/sessions/one/prefetch")


def test_a_hint_sends_what_is_expected_and_tells_whether_it_helps(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["session", "hint", "one", "--tool-running", "--expect", "20s"]) == 0
    assert sent(daemon) == {"tool_running": True, "expect_s": 20.0}
    assert "one is expected; 1,234 tokens will be ready" in capsys.readouterr().err
    assert main(["session", "hint", "one", "--tool-running"]) == 0
    assert sent(daemon) == {"tool_running": True, "expect_s": 30.0}
    daemon.hinted = Hinted(session="", is_taken=False, detail="no tier is on")
    capsys.readouterr()
    assert main(["session", "hint", "one", "--no-tool-running"]) == 0
    assert sent(daemon)["tool_running"] is False
    assert capsys.readouterr().err == "one: no tier is on\n"


def test_removing_a_session_tells_of_its_kv_and_what_is_left(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.removed = daemon.removed.model_copy(update={"kv_blocks": 4, "kv_bytes": 3 << 20, "kv_left": "a reader"})
    assert main(["session", "rm", "one"]) == 0
    err = capsys.readouterr().err
    assert "3 messages deleted; 1 stay in other sessions; 4 blocks of KV, 3.0 MiB" in err
    assert "its KV isn't gone from the disk yet: a reader" in err


@pytest.mark.parametrize("fix", [True, False])
def test_verify_passes_on_what_is_to_be_mended_and_fails_only_for_what_is_left(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], fix: bool
) -> None:
    found = native.StoreFinding(store="blocks", kind="wrong_checksum", subject="record k", detail="d", is_mended=fix)
    daemon.store_findings = [found]
    assert main(["cache", "verify", *(["--fix"] if fix else [])]) == (0 if fix else 1)
    assert sent(daemon) == {"fix": "1" if fix else "0"}
    said = capsys.readouterr()
    assert said.out.splitlines()[1] == f"blocks\twrong_checksum\trecord k\td\t{'yes' if fix else 'no'}"
    assert ("computed again" if fix else "--fix puts it into quarantine") in said.err


def test_tiers_as_json_are_the_report(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.report = TierReport(tiers=[Tier(tier="ram", budget_bytes=5)], stall_s=1.5)
    assert main(["cache", "tiers", "--json"]) == 0
    assert TierReport.model_validate_json(capsys.readouterr().out) == daemon.report


def test_a_tier_that_does_not_work_is_told_by_status_and_doctor(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.report = TierReport(tiers=[Tier(tier="ssd", is_on=False)], problems=[PROBLEM])
    assert main(["daemon", "status"]) == 0
    out = capsys.readouterr().out
    assert "ssd tier:     off" in out
    assert PROBLEM in out
    finding = check_tiers(find_paths())
    assert (finding.level, finding.text) == (Level.WARN, PROBLEM)
    daemon.report = TierReport(tiers=[Tier(tier="gpu"), Tier(tier="ram", used_bytes=1024, budget_bytes=4096)])
    finding = check_tiers(find_paths())
    assert (finding.level, finding.text) == (Level.OK, "tiers below the engine: ram 1.0 KiB of 4.0 KiB")
