"""`akashic daemon`: the daemon in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from akashic_cli.options import HomeOption, JsonOption, takes_settings

if TYPE_CHECKING:
    from akashic_cli.client import Client
    from akashic_cli.login_service import LoginService
    from akashic_daemon.paths import Paths
    from akashic_daemon.protocol.native import Status

app = typer.Typer(no_args_is_help=True, help="Start, stop and watch the background daemon.")


@app.command()
@takes_settings
def start(flags: dict[str, object]) -> None:
    """Start the daemon and wait until it is healthy; flags override settings for this run of it."""
    from akashic_cli.client import Client
    from akashic_cli.render.output import say
    from akashic_daemon.errors import DaemonNotRunning, DaemonRunning
    from akashic_daemon.paths import find_paths

    paths = find_paths()
    with Client(paths.socket) as client:
        try:
            status = client.handshake()
        except DaemonNotRunning:
            say(f"daemon started, pid {_start(client, paths, flags).pid}")
            return
    if flags:
        raise DaemonRunning(
            f"starting the daemon with other settings: one runs already, pid {status.pid}",
            hint="`akashic daemon stop` first",
        )
    say(f"daemon already runs, pid {status.pid}")


@app.command()
def stop(home: HomeOption = None) -> None:
    """Stop the daemon and wait until its state is flushed; having none to stop is no error."""
    from akashic_cli.autostart import find_pid, stop_daemon
    from akashic_cli.client import Client
    from akashic_cli.render.output import say
    from akashic_daemon.paths import find_paths

    paths = find_paths()
    with Client(paths.socket) as client:
        pid = find_pid(client, paths)
        # A manager restarts a daemon that had to end by force, unless the manager was asked to stop it.
        if pid is not None and (service := _running_service(paths)) is not None:
            service.stop()
        stop_daemon(client, paths)
    say("no daemon runs" if pid is None else f"daemon stopped, pid {pid}")


@app.command()
def restart(home: HomeOption = None) -> None:
    """Stop the daemon if there is one, and start it with the settings as they are now; a service stays one."""
    from akashic_cli.autostart import await_daemon, stop_daemon
    from akashic_cli.client import Client
    from akashic_cli.render.output import say
    from akashic_daemon.config import load
    from akashic_daemon.paths import find_paths

    paths = find_paths()
    load(paths.config_file)
    if (service := _running_service(paths)) is not None:
        service.restart()
        with Client(paths.socket) as client:
            await_daemon(client, paths)
            say(f"daemon started by {service.file}, pid {client.handshake().pid}")
        return
    with Client(paths.socket) as client:
        stop_daemon(client, paths)
    with Client(paths.socket) as client:
        say(f"daemon started, pid {_start(client, paths, {}).pid}")


@app.command()
def status(as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Say who runs, with what, and how full it is. Exit code 3: not running; 4: unhealthy."""
    from akashic_cli.client import connect
    from akashic_cli.render.output import print_fields, print_json
    from akashic_daemon.errors import DaemonUnhealthy

    client, found = connect(autostart=False)
    client.close()
    if as_json:
        print_json(found.model_dump())
    else:
        print_fields(_status_fields(found))
    if not found.healthy:
        raise typer.Exit(DaemonUnhealthy.exit_code)


@app.command()
def logs(
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    home: HomeOption = None,
) -> None:
    """Print the end of the daemon's log."""
    from akashic_cli.daemon_log import followed, log_tail
    from akashic_cli.render.output import printable
    from akashic_daemon.errors import NotFound, UsageError
    from akashic_daemon.paths import find_paths

    log = find_paths().daemon_log
    try:
        end = log.stat().st_size
        shown = log_tail(log, lines, end=end)
    except FileNotFoundError:
        raise NotFound(f"reading the daemon's log: there is no {log}", hint="`akashic daemon start` makes it") from None
    except OSError as error:
        raise UsageError(f"reading the daemon's log {log}: {error.strerror}", hint="fix its permissions") from error
    for line in shown:
        print(printable(line))
    for text in followed(log, end) if follow else ():
        print(printable(text), end="", flush=True)


@app.command()
def install(
    print_only: Annotated[bool, typer.Option("--print", help="Print the service's file; change nothing.")] = False,
    home: HomeOption = None,
) -> None:
    """Let the daemon start with your login: as a systemd user service, or a launchd agent on macOS. Needs no root."""
    from akashic_cli.autostart import await_daemon, daemon_command, stop_daemon
    from akashic_cli.client import Client
    from akashic_cli.login_service import login_service
    from akashic_cli.render.output import say
    from akashic_daemon.config import load
    from akashic_daemon.paths import find_paths

    paths = find_paths()
    service = login_service(paths, daemon_command())
    if print_only:
        print(service.text.decode(), end="")
        return
    load(paths.config_file)  # what would end it at its start is said here, not in a log
    service.write()
    with Client(paths.socket) as client:
        stop_daemon(client, paths)
        service.start()
        await_daemon(client, paths)
    say(f"the daemon runs as a service now, by {service.file}; `akashic daemon uninstall` ends that")


@app.command()
def uninstall(home: HomeOption = None) -> None:
    """Stop the service that `install` made and remove it; sessions, settings and models stay."""
    from akashic_cli.autostart import daemon_command
    from akashic_cli.login_service import login_service
    from akashic_cli.render.output import say
    from akashic_daemon.paths import find_paths

    service = login_service(find_paths(), daemon_command())
    service.uninstall()
    say(f"removed {service.file}; commands start the daemon when they need it")


def _running_service(paths: Paths) -> LoginService | None:
    """Return the service as which the daemon of this home runs; None when it doesn't."""
    from akashic_cli.autostart import daemon_command
    from akashic_cli.login_service import login_service
    from akashic_daemon.errors import Unsupported

    try:
        service = login_service(paths, daemon_command())
    except Unsupported:
        return None
    return service if service.runs() else None


def _start(client: Client, paths: Paths, flags: dict[str, object]) -> Status:
    """Start with `flags` as environment, after checking here that they and the settings are valid."""
    from akashic_cli.autostart import start_daemon
    from akashic_daemon.config import load

    load(paths.config_file, flags=flags)
    env = {"AKASHIC_" + name.replace(".", "_").upper(): str(value) for name, value in flags.items()}
    start_daemon(client, paths, env)
    return client.handshake()


def _status_fields(found: Status) -> list[tuple[str, str]]:
    from akashic_cli.render import tiers
    from akashic_cli.render.units import count, duration, size

    engine = found.engine
    fields = [
        ("version", f"{found.version} (protocol {found.protocol_version})"),
        ("pid", str(found.pid)),
        ("up", duration(found.uptime_s)),
        ("healthy", "yes" if found.healthy else f"no: {found.health_detail or 'no reason given'}"),
        ("socket", found.socket),
        ("tcp", found.tcp or "off"),
        ("model", f"{engine.model or '-'} ({engine.state}{': ' + engine.detail if engine.detail else ''})"),
        ("window", f"{count(engine.window_tokens)} tokens"),
        ("kv cells", f"{count(engine.kv_cells_used)} of {count(engine.kv_cells_total)} used"),
        ("sequences", f"{engine.sequences_used} of {engine.sequences_total} used"),
        ("model memory", size(engine.model_bytes)),
        ("kv memory", size(engine.kv_bytes)),
        *tiers.summary(found.tiers),
        ("resident", size(found.resident_bytes)),
        ("database", f"{found.database} ({size(found.database_bytes)})"),
        ("sessions", count(found.sessions)),
        ("requests", f"{found.running} running, {found.queued} waiting"),
    ]
    return fields + [("warning", warning) for warning in found.warnings]
