"""A process that follows a log is killed again and again while the log is written and renamed: each line once."""

from __future__ import annotations

import json
import random
from pathlib import Path

from watched_logs import LogWriter, check, finish, start


def test_nothing_is_lost_or_doubled_by_kills_at_any_moment(tmp_path: Path) -> None:
    folder, home = tmp_path / "logs", tmp_path / "h"
    folder.mkdir()
    writer = LogWriter(folder / "s.jsonl", result_words=40, noise_words=40)
    dice = random.Random(5)
    for life in range(4):
        writer.write(30)
        with start(home, folder) as following:
            assert following.stdout is not None
            try:
                for _ in range(dice.randrange(1, 5)):
                    news = json.loads(following.stdout.readline())
                    writer.write(dice.randrange(1, 40))
                    if news["kind"] == "read" and dice.random() < 0.4:
                        writer.rename()
            finally:
                following.kill()
        if life == 1:
            writer.rename()
    finish(home, folder)
    kept = check(home, writer.expected)
    assert (kept.missing, kept.twice, kept.other) == ((), (), ())
