"""`python -m akashic_daemon.fidelity`: measure, and tell on stdout how it goes, a JSON object a line.

Lines: {"model", "turns"} at the start, {"turn"} as often as `turns` says at most, {"note"} and {"run"} meanwhile, {"result"} or {"error"} at the end.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from akashic_daemon.config import Settings, load
from akashic_daemon.engine.host import KnownModel
from akashic_daemon.errors import UsageError
from akashic_daemon.fidelity.opening import known_model, open_engine
from akashic_daemon.fidelity.score import Scorer
from akashic_daemon.fidelity.storage import StorageScorer
from akashic_daemon.fidelity.turns import Run, read_runs
from akashic_daemon.paths import find_paths
from akashic_daemon.process.measuring import tell, tell_result


def main(argv: list[str] | None = None) -> int:
    """Measure as the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="akashic_daemon.fidelity", description=__doc__)
    parser.add_argument("transcripts", nargs="+", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--keep", type=int, nargs="+", default=[12, 4, 1])
    parser.add_argument("--storage", help="measure what storing KV so loses, instead of shortened histories")
    options = parser.parse_args(argv)
    return tell_result(lambda: measure(options.transcripts, options.model, tuple(options.keep), options.storage))


def measure(
    transcripts: list[Path], model: str | None, keeps: tuple[int, ...], storage: str | None = None
) -> dict[str, Any]:
    """Return the figures of all runs in these files. Raises AkashicError."""
    if any(keep < 0 for keep in keeps) or len(set(keeps)) != len(keeps):
        raise UsageError(f"reading --keep {keeps}: the numbers must differ and not be negative")
    runs = [run for path in transcripts for run in read_runs(path)]
    settings = load(find_paths().config_file)
    known = known_model(model, settings)
    times = len(keeps) if storage is None else 1
    tell({"model": known.name, "turns": times * sum(len(run.answers) for run in runs)})
    return _score(known, settings, runs, keeps, storage)


def _score(
    known: KnownModel, settings: Settings, runs: list[Run], keeps: tuple[int, ...], storage: str | None
) -> dict[str, Any]:
    with ExitStack() as opened:
        engine = opened.enter_context(closing(open_engine(known, settings)))
        for warning in engine.warnings:
            tell({"note": warning})
        if storage is None:
            return Scorer(engine, keeps, tell).score(runs)
        other = opened.enter_context(closing(open_engine(known, settings)))
        return StorageScorer(engine, other, storage, tell).score(runs)


if __name__ == "__main__":
    sys.exit(main())
