"""64 clients with a secret each, who leave at random, over a restart."""

from __future__ import annotations

from pathlib import Path

import canaries
import canaries_killed


def test_no_client_hears_or_stores_anothers_words_over_cancels_and_a_restart(home: Path) -> None:
    heard = canaries.run(home, seed=1)
    assert heard["answered"] > 100
    assert heard["left"] > 10
    assert heard["left waiting"] > 3


def test_no_client_hears_or_stores_anothers_words_while_the_daemon_is_killed_and_started_again(home: Path) -> None:
    heard = canaries_killed.run(home, seed=1, clients=12, lives=3, answers=40)
    assert heard["answered"] >= 120
    assert heard["kill"]
    assert heard["sigterm"]
