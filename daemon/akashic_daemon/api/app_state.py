"""What every route finds in its application: the service that it calls."""

from __future__ import annotations

from starlette.requests import Request

from akashic_daemon.service import Service


def service_of(request: Request) -> Service:
    """Return the daemon's abilities, which `create_app` was given."""
    service: Service = request.app.state.service
    return service
