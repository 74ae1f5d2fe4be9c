"""Where the command starts, and where every error ends: one line of `error:`, perhaps one of `hint:`, an exit code."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

from akashic_daemon.errors import AkashicError, StoreUnwritable

EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; the console script passes it to `sys.exit`."""
    from akashic_cli.app import app

    _prepare_output()
    try:
        code = app(list(argv) if argv is not None else None, prog_name="akashic", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as error:
        # Click turns a broken pipe into an exit of its own.
        if isinstance(error.__context__, BrokenPipeError):
            return _reader_left()
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return report(error)
        _discard_output()
        return report(StoreUnwritable(f"writing to stdout: {error.strerror}", hint="free space there"))
    except Exception as error:  # noqa: BLE001 - the border of the process: nothing may end in a traceback
        return report(error, sys.argv[1:] if argv is None else argv)
    return code if isinstance(code, int) else 0


def report(error: Exception, arguments: Sequence[str] = ()) -> int:
    """Print an error for people on stderr and return its exit code. arguments: what was typed."""
    if isinstance(error, AkashicError):
        _say(error.message, error.hint)
        return error.exit_code
    if type(error).__name__ == "Abort":
        return EXIT_INTERRUPTED
    if type(error).__name__ == "NoArgsIsHelpError":
        print(getattr(error, "message", ""), file=sys.stderr)
        return 2
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # click's own: a wrong option or argument
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "akashic"
        _say(format_message(), f"`{command} --help` shows what is possible")
        return int(getattr(error, "exit_code", 2))
    # Only file names may be other bytes: they are opened as they are, and everything else is sent as UTF-8.
    if isinstance(error, ValueError) and (bad := next((a for a in arguments if not _is_text(a)), None)) is not None:
        shown = bad.encode("utf-8", "replace").decode()
        _say(f"reading the command line: {shown!r} is no UTF-8", "give text as UTF-8")
        return 2
    _say(
        f"running akashic: unexpected {type(error).__name__}: {error}",
        "this is a fault of akashic; `python -X dev -m akashic_cli …` prints the traceback",
    )
    if sys.flags.dev_mode:
        import traceback

        traceback.print_exception(error)
    return 1


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _say(message: str, hint: str | None) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


def _prepare_output() -> None:
    """See to it that printing works whatever stdout and stderr are."""
    # Closed ones (`>&-`) are none, and what is printed to no stderr would come out on stdout.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A terminal of another encoding shows ? for what it lacks; it is no reason to end in the middle.
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")


def _reader_left() -> int:
    """Leave quietly when the reader of stdout went away (`| head`)."""
    _discard_output()
    return 0


def _discard_output() -> None:
    """Let go of what wasn't written yet; Python must not flush it into a closed pipe or a full disk."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    sys.exit(main())
