"""`python -m akashic_daemon.speed`: time this machine, its engine or its kernels, and tell on stdout, a JSON object a line.

Lines: {"points"} at the start, how many there may be, and {"point"} for each that was timed, {"note"} meanwhile, {"result"} or {"error"} at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from akashic_daemon.config import load
from akashic_daemon.errors import Unsupported
from akashic_daemon.fidelity.opening import known_model, open_engine
from akashic_daemon.paths import ensure_private_dir, find_paths
from akashic_daemon.process.measuring import tell, tell_result
from akashic_daemon.speed.points import FULL, QUICK, Budget, Timing
from akashic_daemon.speed.probe import probe

BUDGETS = {False: Budget(45.0, 120.0), True: Budget(120.0, 300.0)}
"""How long timing an engine may take, quick and full; the last round or point is finished."""


def main(argv: list[str] | None = None) -> int:
    """Measure as the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="akashic_daemon.speed", description=__doc__)
    parser.add_argument("--probe", action="store_true", help="measure memory, cores and disk alone")
    parser.add_argument(
        "--torch", choices=("kernels", "decode"), help="measure kernels, or decoding, of the torch engine"
    )
    parser.add_argument("--full", action="store_true", help="more and longer points")
    parser.add_argument("--model")
    options = parser.parse_args(argv)
    return tell_result(lambda: _measured(options))


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    if options.torch:
        return _torch(options.torch, options.model, full=options.full)
    return _machine() if options.probe else _engine(options.model, full=options.full)


def _machine() -> dict[str, Any]:
    folder: Path = ensure_private_dir(find_paths().cache_dir)
    return {"machine": probe(folder).to_json()}


def _engine(model: str | None, *, full: bool) -> dict[str, Any]:
    """Probe before the model is loaded, then time it, with as many threads as there are cores unless one set them."""
    result = _machine()
    settings = load(find_paths().config_file)
    known = known_model(model, settings)
    threads = settings.config.schedule.threads or len(os.sched_getaffinity(0))
    with closing(open_engine(known, settings, threads=threads)) as engine:
        for warning in engine.warnings:
            tell({"note": warning})
        timing = Timing(engine, FULL if full else QUICK, BUDGETS[full], lambda point: tell({"point": str(point)}))
        most_s = round(timing.budget.most_s)
        tell({"points": len(timing.fitting) * timing.budget.rounds, "model": engine.model.name, "most_s": most_s})
        timing.run()
        for point in timing.left_out():
            tell({"note": f"{point} wasn't timed: {most_s} s were over"})
        disturbed = timing.disturbed()
        if disturbed:
            tell(
                {
                    "note": f"other programs ran beside {len(disturbed)} of {len(timing.timed())} points: stop them, and time again"
                }
            )
        result |= {"disturbed": [str(point) for point in disturbed]}
        result |= {"model": engine.model.name, "path": engine.model.path, "threads": threads, "rounds": timing.rounds}
        result["points"] = [asdict(point) for point in timing.timed()]
        result["kv_format"] = settings.config.model.kv_type
    return result


def _torch(what: str, model: str | None, *, full: bool) -> dict[str, Any]:
    """Measure the torch engine; without a GPU, what serves CPU tensors, and say so."""
    try:
        import torch

        from akashic_daemon.speed.torch_decode import time_decode
        from akashic_daemon.speed.torch_kernels import time_kernels
    except ImportError as error:
        raise Unsupported(
            f"measuring {what} of the torch engine needs {error.name}, which isn't installed",
            hint="`./install.sh --with gpu`",
        ) from error
    settings = load(find_paths().config_file)
    on_gpu = torch.cuda.is_available() and settings.config.model.gpu_layers != 0
    device = torch.device("cuda" if on_gpu else "cpu")
    if not on_gpu:
        tell({"note": f"no CUDA device is used: these are the references for CPUs ({what} on a GPU stays unmeasured)"})
    rows = []
    found = known_model(model, settings) if what == "decode" else None
    timed = time_decode(found, settings, full=full) if found is not None else time_kernels(device, full=full)
    with torch.inference_mode():
        for row in timed:
            rows.append(row)
            tell({"row": row})
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    return {
        "suite": what,
        "device": name,
        "torch": torch.__version__,
        "model": found.name if found else "",
        "rows": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
