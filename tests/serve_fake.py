"""Run the daemon of `AKASHIC_HOME` on the fake engine.

`python serve_fake.py [--host H] [--port P] [--idle-exit S] [--stop-limit S] [--wedged] [--endless-load] [--cells N] [--window N]
[--end-every N] [--long-steps N] [--set KEY=VALUE ...] [--check-end [--leak-limit S]]`; a wedged one never stops by itself, a checked one only when all is given back. With an endless load the engine never comes, and finalising Python under it ends with status 139. With long steps, one of at least N tokens lasts until it is interrupted.
"""

from __future__ import annotations

import argparse
import atexit
import logging
import os
import sys
import threading
from pathlib import Path

from akashic_daemon.config import load
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.paths import find_paths
from akashic_daemon.process.lifecycle import _STOP_LIMIT_S, serve
from akashic_daemon.service import Service
from fake_service import NEVER
from leaks import assert_all_is_given_back
from long_steps import LongStepsEngine


class WedgedService(Service):
    """Blocks the event loop for ever when it is to stop."""

    async def stop(self) -> None:
        """Never return, not even to the event loop."""
        threading.Event().wait()


class CheckedService(Service):
    """Before it stops, it looks for what requests have left; then the log has `nothing is left`, or it fails."""

    limit_s = 60.0

    async def stop(self) -> None:
        """Stop in good order, or leave with status 1."""
        try:
            await assert_all_is_given_back(self, self.limit_s)
            logging.getLogger("akashic.test").info("nothing is left")
        finally:
            await super().stop()


def main() -> int:
    """Serve until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--idle-exit", type=int)
    parser.add_argument("--stop-limit", type=float, default=_STOP_LIMIT_S)
    parser.add_argument("--wedged", action="store_true")
    parser.add_argument("--endless-load", action="store_true")
    parser.add_argument("--cells", type=int, default=1 << 20)
    parser.add_argument("--window", type=int, default=1 << 18)
    parser.add_argument("--end-every", type=int, default=NEVER)
    parser.add_argument("--long-steps", type=int, default=NEVER)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--check-end", action="store_true")
    parser.add_argument("--leak-limit", type=float, default=CheckedService.limit_s)
    options = parser.parse_args()

    def make_engine(_name: str, _path: Path) -> FakeEngine:
        if options.endless_load:
            atexit.register(os._exit, 139)  # as native code in another thread may
            (paths.store_dir / "load-has-begun").touch()
            threading.Event().wait()
        sizes = {"kv_cells": options.cells, "window_tokens": options.window, "end_every": options.end_every}
        return FakeEngine(**sizes) if options.long_steps == NEVER else LongStepsEngine(options.long_steps, **sizes)

    flags = {
        "model.default": "fake", "serve.host": options.host, "serve.port": options.port,
        "serve.idle_exit_s": options.idle_exit, **dict(pair.split("=", 1) for pair in options.set),
    }  # fmt: skip
    paths = find_paths({"AKASHIC_HOME": os.environ["AKASHIC_HOME"]})
    settings = load(paths.config_file, env={}, flags=flags)
    CheckedService.limit_s = options.leak_limit
    kind = WedgedService if options.wedged else CheckedService if options.check_end else Service
    service = kind(settings, paths, engine_factory=make_engine)
    return serve(settings, paths, service=service, stop_limit_s=options.stop_limit)


if __name__ == "__main__":
    sys.exit(main())
