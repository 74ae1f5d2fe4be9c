"""64 clients with a secret each, who leave at random, over a restart."""

from __future__ import annotations

from pathlib import Path

import canaries


def test_no_client_hears_or_stores_anothers_words_over_cancels_and_a_restart(home: Path) -> None:
    heard = canaries.run(home, seed=1)
    assert heard["answered"] > 100
    assert heard["left"] > 10
    assert heard["left waiting"] > 3
