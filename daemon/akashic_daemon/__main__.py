"""`python -m akashic_daemon serve`: the daemon without the CLI."""

from __future__ import annotations

import argparse
import sys

from akashic_daemon import __version__
from akashic_daemon.config import load
from akashic_daemon.errors import AkashicError
from akashic_daemon.paths import find_paths


def main(argv: list[str] | None = None) -> int:
    """Parse flags and serve; return the exit code."""
    parser = argparse.ArgumentParser(prog="akashic_daemon", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    command = parser.add_subparsers(dest="command", required=True).add_parser("serve", help="run in the foreground")
    command.add_argument("--host")
    command.add_argument("--port", type=int)
    command.add_argument("--model")
    command.add_argument("--insecure-no-auth", action="store_true", default=None)
    options = parser.parse_args(argv)
    flags = {
        "serve.host": options.host,
        "serve.port": options.port,
        "serve.insecure_no_auth": options.insecure_no_auth,
        "model.default": options.model,
    }
    try:
        from akashic_daemon.process.lifecycle import serve

        paths = find_paths()
        return serve(load(paths.config_file, flags=flags), paths)
    except AkashicError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
