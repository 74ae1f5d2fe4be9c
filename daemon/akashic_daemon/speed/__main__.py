"""`python -m akashic_daemon.speed`: time this machine, or its engine, and tell on stdout, a JSON object a line.

Lines: {"points"} at the start and {"point"} for each that was timed, {"note"} meanwhile, {"result"} or {"error"} at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from akashic_daemon.config import load
from akashic_daemon.errors import AkashicError
from akashic_daemon.fidelity.opening import known_model, open_engine
from akashic_daemon.paths import ensure_private_dir, find_paths
from akashic_daemon.speed.points import FULL, QUICK, time_points
from akashic_daemon.speed.probe import probe

_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Measure as the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="akashic_daemon.speed", description=__doc__)
    parser.add_argument("--probe", action="store_true", help="measure memory, cores and disk alone")
    parser.add_argument("--full", action="store_true", help="more and longer points")
    parser.add_argument("--model")
    options = parser.parse_args(argv)
    try:
        _tell({"result": _machine() if options.probe else _engine(options.model, full=options.full)})
    except AkashicError as error:
        _tell({"error": error.to_wire()})
        return error.exit_code
    except KeyboardInterrupt:  # who started this process has been told too, and says so
        return _INTERRUPTED
    return 0


def _tell(news: dict[str, Any]) -> None:
    print(json.dumps(news, ensure_ascii=False), flush=True)


def _machine() -> dict[str, Any]:
    folder: Path = ensure_private_dir(find_paths().cache_dir)
    return {"machine": probe(folder).to_json()}


def _engine(model: str | None, *, full: bool) -> dict[str, Any]:
    """Probe before the model is loaded, then time it."""
    result = _machine()
    settings = load(find_paths().config_file)
    known = known_model(model, settings)
    points = FULL if full else QUICK
    with closing(open_engine(known, settings)) as engine:
        for warning in engine.warnings:
            _tell({"note": warning})
        _tell({"points": len(points), "model": engine.model.name})
        timed = []
        for point in time_points(engine, points):
            timed.append(asdict(point))
            _tell({"point": timed[-1]})
        result |= {"model": engine.model.name, "path": engine.model.path, "points": timed}
        result["kv_format"] = settings.config.model.kv_type
    return result


if __name__ == "__main__":
    sys.exit(main())
