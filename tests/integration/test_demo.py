"""The demo, from its first command to its last, on a daemon with the fake engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from akashic_cli.demonstration import demonstrate, steps
from akashic_daemon.errors import AkashicError
from akashic_daemon.paths import find_paths
from fake_daemon import daemon, on_socket
from fake_service import register


@pytest.mark.parametrize("keep", [False, True])
def test_every_step_works_and_what_was_made_is_removed_unless_it_is_to_stay(
    home: Path, capfd: pytest.CaptureFixture[str], keep: bool
) -> None:
    register(home, ["fake"])
    with daemon(home):
        demonstrate(keep=keep)
        with on_socket(find_paths()) as client:
            left = [s["session"] for s in client.get("/akashic/v1/sessions").json()["sessions"]]
    said = capfd.readouterr()
    assert len(left) == int(keep)
    assert said.err.count("\n$ akashic ") == len(steps("s"))
    assert "nothing that was computed before had to be computed again" in said.out


def test_a_step_that_fails_ends_it_and_says_where(home: Path) -> None:
    (home / "config.toml").write_text("[serve]\nprt = 1\n")
    with pytest.raises(AkashicError, match="the demo ended at `akashic chat"):
        demonstrate(keep=False)
