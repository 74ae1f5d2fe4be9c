"""What every route finds in its application: the service that it calls."""

from __future__ import annotations

from starlette.requests import Request

from akashic_daemon.api.border import IS_KNOWN
from akashic_daemon.errors import Forbidden
from akashic_daemon.service import Service


def service_of(request: Request) -> Service:
    """Return the daemon's abilities, which `create_app` was given."""
    service: Service = request.app.state.service
    return service


def check_may_name_files(request: Request, doing: str) -> None:
    """Raise Forbidden for who came over TCP without a token: any local user could have files of this one read."""
    if not getattr(request.state, IS_KNOWN):
        raise Forbidden(
            f"{doing}: it names files, and over TCP without a token anybody can ask",
            hint="use the daemon's Unix socket, as `akashic` does, or leave serve.insecure_no_auth off",
        )
